"""One request as one trace: front end and worker send their spans to a collector. Logs as JSON."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from pipeline.config.places import Places
from pipeline.dynamo.fleet import openai_url, start_fleet
from tests.integration.servers import prepared

pytestmark = [pytest.mark.triton, pytest.mark.slow]

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
PROMPT = "a prompt that must stay here"


class Collector(BaseHTTPRequestHandler):
    """Keeps what it is sent."""

    received: list[bytes]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        type(self).received.append(body)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[str]:
    Collector.received = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_request_is_one_trace_of_front_end_and_worker(shared_where: Places, tmp_path: Path, collector: str) -> None:
    overrides = ("server.openai=true", f"server.otlp_endpoint={collector}", "server.json_logs=true")
    fleet = start_fleet(prepared(shared_where, *overrides), shared_where, tmp_path)
    try:
        body = {"model": "tiny-random-llama", "prompt": PROMPT, "max_tokens": 4}
        headers = {"traceparent": f"00-{TRACE_ID}-00f067aa0ba902b7-01"}
        answer = httpx.post(f"{openai_url(tmp_path)}/completions", json=body, headers=headers, timeout=60)
        assert answer.status_code == 200
        assert httpx.post(f"{openai_url(tmp_path)}/completions", json=body | {"model": "x"}).status_code == 404
        wanted = {b"lookahead-front-end", b"lookahead-worker"}
        deadline = time.monotonic() + 30
        seen: set[bytes] = set()
        while seen < wanted and time.monotonic() < deadline:
            ours = [sent for sent in Collector.received if bytes.fromhex(TRACE_ID) in sent]
            seen = {name for name in wanted for sent in ours if name in sent}
            time.sleep(0.2)
        front_end = (tmp_path / "services" / "front-end" / "server.log").read_text()
    finally:
        fleet.stop()

    assert seen == wanted
    assert PROMPT.encode() not in b"".join(Collector.received)
    entries = [json.loads(line) for line in front_end.splitlines() if line.startswith("{")]
    assert "404" in [entry.get("status") for entry in entries]
