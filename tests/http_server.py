"""A small HTTP server in a test's own process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    """Answers requests without a log."""

    def read(self) -> bytes:
        return self.rfile.read(int(self.headers["content-length"]))

    def answer(self, body: bytes = b"", status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"content-length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    """Of more than five connections at the same time, the kernel would let the others wait for a second."""

    request_queue_size = 128


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler], port: int = 0) -> Iterator[int]:
    """Port of a server on this machine for the length of a block. port: 0 for a free one."""
    server = Server(("127.0.0.1", port), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)  # shut down within 10 ms
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
