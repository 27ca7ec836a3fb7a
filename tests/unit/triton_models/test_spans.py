"""Spans of served models: contexts, the message to the collector, and what a request and its passes say."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from socketserver import BaseRequestHandler, TCPServer
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipeline.decoding.session import GenerationStatistics
from pipeline.engine.submission import StepEvent
from pipeline.triton_models import spans
from pipeline.triton_models.request_spans import pass_spans, traced
from pipeline.triton_models.spans import (
    TRACEPARENT,
    SpanContext,
    Tracer,
    sampled_context,
    span_of,
    trace_variables,
    tracer_of,
)
from tests.http_server import serving
from tests.logs import Logs
from tests.servers import wait_for

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = f"00-{TRACE}-{SPAN}-01"
STATISTICS = GenerationStatistics(num_draft_tokens=9, num_accepted_tokens=3, acceptance_lengths=[3, 2])
REQUEST: Any = SimpleNamespace(
    engine=SimpleNamespace(strategy="trie"),
    outcome="length",
    started=0.0,
    statistics=STATISTICS,
    num_output_tokens=5,
    num_calls=2,
)


class Collector(BaseHTTPRequestHandler):
    bodies: list[Any]

    def do_POST(self) -> None:
        type(self).bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def tracer() -> Iterator[Tracer]:
    Collector.bodies = []
    with serving(Collector) as port:
        yield Tracer(f"http://127.0.0.1:{port}/v1/traces", "lookahead-bls")


def sent_spans(tracer: Tracer) -> list[dict[str, Any]]:
    tracer.close()
    scopes = [scope for body in Collector.bodies for of in body["resourceSpans"] for scope in of["scopeSpans"]]
    return [span for scope in scopes for span in scope["spans"]]


def tensor(text: str) -> dict[str, Any]:
    return {TRACEPARENT: np.asarray([[text.encode()]], np.object_)}


def test_a_sampled_traceparent_names_a_span() -> None:
    assert sampled_context(SAMPLED) == SpanContext(TRACE, SPAN)
    assert SpanContext(TRACE, SPAN).traceparent == SAMPLED


@pytest.mark.parametrize(
    "traceparent",
    [None, "", "x", f"00-{TRACE}-{SPAN}-00", f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", SAMPLED + "\n"],
)
def test_an_unsampled_or_malformed_one_names_none(traceparent: str | None) -> None:
    assert sampled_context(traceparent) is None


def test_a_message_is_one_of_otlp(tracer: Tracer, monkeypatch: pytest.MonkeyPatch) -> None:
    parent = SpanContext(TRACE, SPAN)
    context = parent.child()
    # Two seconds later, between which the clock of the day was set back.
    monkeypatch.setattr(time, "perf_counter", lambda: 12.0)
    monkeypatch.setattr(time, "time_ns", lambda: 7_000_000_000)
    tracer.record(span_of("engine pass", context, parent, 10.0, {"a": 3, "b": "x"}))

    assert sent_spans(tracer) == [
        {
            "traceId": TRACE,
            "spanId": context.span_id,
            "parentSpanId": SPAN,
            "name": "engine pass",
            "kind": 1,
            "startTimeUnixNano": "5000000000",
            "endTimeUnixNano": "7000000000",
            "attributes": [
                {"key": "a", "value": {"intValue": "3"}},
                {"key": "b", "value": {"stringValue": "x"}},
            ],
        }
    ]
    service = {"key": "service.name", "value": {"stringValue": "lookahead-bls"}}
    assert Collector.bodies[0]["resourceSpans"][0]["resource"] == {"attributes": [service]}


def test_a_collector_that_is_gone_costs_spans_only(logs: Logs) -> None:
    tracer = Tracer("http://127.0.0.1:9/v1/traces", "lookahead-bls")  # the port that discards, which nobody serves
    tracer.record(span_of("x", SpanContext(TRACE, SPAN), SpanContext(TRACE, SPAN), 0, {}))
    tracer.close()

    assert "1 spans could not be sent" in logs.text


class Foreign(BaseRequestHandler):
    """A port with another protocol, such as gRPC: what it sends is no HTTP."""

    def handle(self) -> None:
        self.request.recv(1000)
        self.request.sendall(b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\n")


def test_a_collector_with_another_protocol_costs_spans_only(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "_PERIOD_S", 0.02)
    span = span_of("x", SpanContext(TRACE, SPAN), SpanContext(TRACE, SPAN), 0, {})
    with TCPServer(("127.0.0.1", 0), Foreign) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        tracer = Tracer(f"http://127.0.0.1:{server.server_address[1]}/v1/traces", "lookahead-bls")
        tracer.record(span)
        wait_for(lambda: "1 spans could not be sent" in logs.text)
        for _ in range(2 * spans._MAX_WAITING):
            tracer.record(span)
        tracer.close()  # without sending them all
        server.shutdown()


def test_a_request_is_the_parent_of_what_it_calls(tracer: Tracer) -> None:
    ended: list[object] = []
    tensors, on_end = traced(tracer, tensor(SAMPLED), ended.append)
    passes = pass_spans(tensors)
    on_end(REQUEST)
    (request,) = sent_spans(tracer)

    assert ended == [REQUEST]
    assert (request["traceId"], request["parentSpanId"]) == (TRACE, SPAN)
    assert passes is not None
    assert passes.parent == SpanContext(TRACE, request["spanId"])
    values = {pair["key"]: next(iter(pair["value"].values())) for pair in request["attributes"]}
    assert values == {
        "lookahead.strategy": "trie",
        "lookahead.outcome": "length",
        "lookahead.steps": "2",
        "lookahead.engine_calls": "2",
        "lookahead.tokens": "5",
        "lookahead.draft_tokens": "9",
        "lookahead.accepted_tokens": "3",
    }


@pytest.mark.parametrize("tensors", [{}, tensor("x"), tensor(f"00-{TRACE}-{SPAN}-00")])
def test_a_request_outside_of_a_sampled_trace_stays_as_it_is(tracer: Tracer, tensors: dict[str, Any]) -> None:
    def on_end(request: Any) -> None: ...

    assert traced(tracer, tensors, on_end) == (tensors, on_end)
    assert pass_spans(tensors) is None
    assert sent_spans(tracer) == []


def test_a_pass_has_the_counts_of_its_own() -> None:
    passes = pass_spans(tensor(SAMPLED))
    assert passes is not None
    statistics = GenerationStatistics()
    counts = []
    for drafted, accepted, token_ids in ((4, 2, [1, 2, 3]), (9, 2, [4])):
        statistics.num_draft_tokens, statistics.num_accepted_tokens = drafted, accepted
        span = passes.span(StepEvent("id", token_ids, statistics), started=1.0)
        assert (span["traceId"], span["parentSpanId"]) == (TRACE, SPAN)
        counts.append(tuple(pair["value"]["intValue"] for pair in span["attributes"]))

    assert counts == [("3", "4", "2"), ("1", "5", "0")]


def test_a_server_without_an_endpoint_has_no_tracer() -> None:
    assert tracer_of("x", trace_variables(None)) is None


def test_a_server_with_an_endpoint_sends_to_its_path() -> None:
    assert list(trace_variables("http://collector:4318").values()) == ["http://collector:4318/v1/traces"]
