"""One request as one trace: front end, worker, BLS model and engine send their spans to a collector. Logs as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from pipeline.config.folders import Folders
from pipeline.dynamo.fleet import openai_url, start_fleet
from tests.http_server import Handler, serving
from tests.integration.servers import prepared
from tests.patience import PATIENCE_S
from tests.servers import wait_for

pytestmark = [pytest.mark.triton, pytest.mark.slow]

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
PREDICTION = "a guess that must stay here"
PROMPT = "a prompt that must stay here"


class Collector(Handler):
    """Keeps what it is sent."""

    received: list[bytes]
    spans: list[dict[str, Any]]  # of those who send JSON

    def do_POST(self) -> None:
        body = self.read()
        self.received.append(body)
        if self.headers["content-type"] == "application/json":
            scopes = [scope for of in json.loads(body)["resourceSpans"] for scope in of["scopeSpans"]]
            self.spans.extend(span for scope in scopes for span in scope["spans"])
        self.answer()


@pytest.fixture
def collector() -> Iterator[str]:
    Collector.received, Collector.spans = [], []
    with serving(Collector) as port:
        yield f"http://127.0.0.1:{port}"


def figures(span: dict[str, Any]) -> dict[str, int]:
    pairs = {pair["key"].removeprefix("lookahead."): pair["value"] for pair in span["attributes"]}
    return {key: int(value["intValue"]) for key, value in pairs.items() if "intValue" in value}


def passes_of() -> list[dict[str, Any]]:
    """The spans of the engine so far."""
    return [span for span in list(Collector.spans) if span["name"] == "engine pass"]


def statuses(log: Path) -> list[str | None]:
    """Status of each request in a log of JSON lines. The last line may not be whole."""
    return [json.loads(line).get("status") for line in log.read_text().splitlines(True) if line[0] + line[-1] == "{\n"]


def test_a_request_is_one_trace_down_to_the_pass(shared_where: Folders, tmp_path: Path, collector: str) -> None:
    overrides = ("server.openai=true", f"server.otlp_endpoint={collector}", "server.json_logs=true")
    fleet = start_fleet(prepared(shared_where, *overrides), shared_where, tmp_path)
    try:
        annotations = {"nvext": {"annotations": ["strategy:trie", f"prediction:{PREDICTION}"]}}
        body = {"model": "tiny-random-llama", "prompt": PROMPT, "max_tokens": 8, "ignore_eos": True, **annotations}
        headers = {"traceparent": f"00-{TRACE_ID}-00f067aa0ba902b7-01"}
        answer = httpx.post(f"{openai_url(tmp_path)}/completions", json=body, headers=headers, timeout=PATIENCE_S)
        assert answer.status_code == 200
        wrong = httpx.post(f"{openai_url(tmp_path)}/completions", json=body | {"model": "x"}, timeout=PATIENCE_S)
        assert wrong.status_code == 404

        def of_worker() -> list[bytes]:
            return [sent for sent in Collector.received if b"lookahead-worker" in sent]

        def is_whole() -> bool:
            names = [span["name"] for span in Collector.spans]
            ids = [bytes.fromhex(TRACE_ID) in sent for sent in Collector.received if b"lookahead-front-end" in sent]
            return (
                any(ids) and "lookahead_bls" in names and any(bytes.fromhex(TRACE_ID) in sent for sent in of_worker())
            )

        assert wait_for(is_whole)
        request = next(span for span in Collector.spans if span["name"] == "lookahead_bls")
        parent = bytes.fromhex(request["parentSpanId"])
        assert wait_for(lambda: any(parent in sent for sent in of_worker()))
        # A busy server may be killed at its stop before it has sent its last spans.
        assert wait_for(lambda: sum(figures(span)["tokens"] for span in passes_of()) >= figures(request)["tokens"])
        # The front end logs a request after its response.
        assert wait_for(lambda: "404" in statuses(tmp_path / "services" / "front-end" / "server.log"))
    finally:
        fleet.stop()

    passes = passes_of()
    assert {span["traceId"] for span in (request, *passes)} == {TRACE_ID}
    assert {span["parentSpanId"] for span in passes} == {request["spanId"]}
    for name in ("tokens", "draft_tokens", "accepted_tokens"):
        assert sum(figures(span)[name] for span in passes) == figures(request)[name]
    assert figures(request)["tokens"] == 8
    assert figures(request)["draft_tokens"] > 0
    for span in passes:
        assert int(request["startTimeUnixNano"]) < int(span["startTimeUnixNano"]) < int(span["endTimeUnixNano"])
    everything = b"".join(Collector.received)
    assert PROMPT.encode() not in everything
    assert PREDICTION.encode() not in everything
