"""A stand-in for Triton's HTTP interface, which sends what a test gives it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from tests.patience import PATIENCE_S


class Refusal(NamedTuple):
    """A whole response with an error."""

    status: int
    text: str


def tokens(*ids: int, **more: Any) -> dict[str, Any]:
    """An event with new tokens. Triton sends a single value without a list."""
    return {"model_name": "lookahead_bls", "output_ids": ids[0] if len(ids) == 1 else list(ids), **more}


def failed(text: str) -> dict[str, Any]:
    return {"error": text}


class Triton:
    """Sends the given events; a `Refusal` in place of the first one. None waits until the request is stopped or its
    client has left.

    requests: JSON of all, without those that stop others. headers: of the last one. stopped: ids of requests that were
    to be stopped. was_read, was_left: whether a client stayed until the end of a stream. obeys: whether it stops
    requests. is_ready: its readiness."""

    def __init__(self, *answers: Any) -> None:
        self.answers = answers
        self.requests: list[dict[str, Any]] = []
        self.headers: dict[str, str] = {}
        self.stopped: list[str] = []
        self.was_read, self.was_left = asyncio.Event(), asyncio.Event()
        self.obeys = self.is_ready = True
        self._go_on = asyncio.Event()

    def stop(self, request_id: str) -> None:
        self.stopped.append(request_id)
        if self.obeys:
            self._go_on.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the request of a connection."""
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines if line)
        body = await reader.readexactly(int(headers["content-length"]))
        try:
            if first == "GET /v2/health/ready HTTP/1.1":
                writer.write(_whole(200 if self.is_ready else 400))
            elif first == "POST /v2/models/lookahead_bls/generate_stream HTTP/1.1":
                await self._stream(json.loads(body), headers, reader, writer.write)
            else:
                writer.write(_whole(404))
        finally:
            writer.close()

    async def _stream(
        self,
        request: dict[str, Any],
        headers: dict[str, str],
        reader: asyncio.StreamReader,
        write: Callable[[bytes], None],
    ) -> None:
        if request.get("stop"):
            self.stop(request["id"])
            write(_whole(200))
            return
        self.requests.append(request)
        self.headers = headers
        if self.answers and isinstance(refusal := self.answers[0], Refusal):
            write(_whole(refusal.status, json.dumps(failed(refusal.text)).encode()))
            return
        left = asyncio.ensure_future(reader.read())
        write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for answer in self.answers:
            if answer is None:
                going = asyncio.ensure_future(self._go_on.wait())
                await asyncio.wait({going, left}, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
                going.cancel()
                if left.done():
                    self.was_left.set()
                    return
            else:
                event = b"data: " + json.dumps(answer).encode() + b"\n\n"
                write(f"{len(event):x}\r\n".encode() + event + b"\r\n")
        write(b"0\r\n\r\n")
        await asyncio.wait_for(left, PATIENCE_S)
        self.was_read.set()


def _whole(status: int, body: bytes = b"") -> bytes:
    return f"HTTP/1.1 {status} -\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


@asynccontextmanager
async def serving(*answers: Any) -> AsyncGenerator[tuple[Triton, str], None]:
    """The stand-in and its address, for the length of a block."""
    triton = Triton(*answers)
    server = await asyncio.start_server(triton.serve, "127.0.0.1", 0)
    try:
        yield triton, f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
