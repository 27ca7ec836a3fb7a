"""OpenTelemetry spans of a served model, sent to a collector as OTLP over HTTP in JSON.

Without a collector there is no tracer and no cost. Spans hold names, times and counts, but no text and no tokens.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import re
import secrets
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http.client import HTTPException
from typing import Any, NamedTuple

# Environment variable with the URL to which a server sends its spans.
VARIABLE = "LOOKAHEAD_TRACES_URL"
# Input of `lookahead_bls` and `tensorrt_llm`: parent span of the request, in the format of W3C Trace Context.
TRACEPARENT = "traceparent"
_FORM = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f][13579bdf]")  # the last bit: sampled
_INTERNAL = 1
# Capacity of the queue; further spans are dropped.
_MAX_WAITING = 8192
# Spans per message.
_MAX_SENT = 512
_PERIOD_S = 0.5
_TIMEOUT_S = 5.0

logger = logging.getLogger(__name__)


def trace_variables(endpoint: str | None) -> dict[str, str]:
    """Environment variables of a server that sends spans to a collector; none without an endpoint."""
    return {} if endpoint is None else {VARIABLE: f"{endpoint}/v1/traces"}


class SpanContext(NamedTuple):
    """Ids of a trace (32 lowercase hexadecimal digits) and of one of its spans (16)."""

    trace_id: str
    span_id: str

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-01"

    def child(self) -> SpanContext:
        """The context of a new span of the same trace."""
        return SpanContext(self.trace_id, secrets.token_hex(8))


def sampled_context(traceparent: str | None) -> SpanContext | None:
    """The span in a `traceparent`. None if it is not sampled, or malformed: W3C Trace Context ignores those."""
    found = _FORM.fullmatch(traceparent or "")
    if found is None or not int(found[1], 16) or not int(found[2], 16):
        return None
    return SpanContext(found[1], found[2])


Span = dict[str, Any]


def span_of(
    name: str, context: SpanContext, parent: SpanContext, started: float, attributes: Mapping[str, str | int]
) -> Span:
    """A span that ends now, in the JSON encoding of OTLP 1.0. started: seconds of time.perf_counter, because the clock
    of the day may be set meanwhile."""
    ended_ns = time.time_ns()
    return {
        "traceId": context.trace_id,
        "spanId": context.span_id,
        "parentSpanId": parent.span_id,
        "name": name,
        "kind": _INTERNAL,
        "startTimeUnixNano": str(ended_ns - int(1e9 * (time.perf_counter() - started))),
        "endTimeUnixNano": str(ended_ns),
        "attributes": _pairs(attributes),
    }


class Tracer:
    """Sends spans from a separate thread. If the collector is slow or down, spans are lost; requests are not
    affected."""

    def __init__(self, url: str, service: str) -> None:
        """url: the collector's endpoint for traces. service: value of `service.name`."""
        self._url = url
        self._service = service
        self._queue: queue.Queue[Span | None] = queue.Queue(_MAX_WAITING)
        self._closing = threading.Event()
        self._has_failed = False
        self._thread = threading.Thread(target=self._work, name="spans", daemon=True)
        self._thread.start()

    def record(self, span: Span) -> None:
        """Queue a span for sending; drop it if the queue is full."""
        if not self._queue.full():
            self._queue.put(span)

    def close(self) -> None:
        """Send the queued spans, unless the collector is down, and stop the thread."""
        self._closing.set()
        with suppress(queue.Full):  # then the thread does not wait
            self._queue.put_nowait(None)
        self._thread.join()

    def _work(self) -> None:
        while not (self._closing.is_set() and (self._has_failed or self._queue.empty())):
            first = self._queue.get()
            self._closing.wait(_PERIOD_S)  # so that more spans share a message
            waiting = [first, *(self._queue.get() for _ in range(min(self._queue.qsize(), _MAX_SENT - 1)))]
            if spans := [span for span in waiting if span is not None]:
                self._send(spans)

    def _send(self, spans: Sequence[Span]) -> None:
        resource = {"attributes": _pairs({"service.name": self._service})}
        scope = {"scope": {"name": "lookahead"}, "spans": spans}
        body = json.dumps({"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]}).encode()
        request = urllib.request.Request(self._url, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S):
                self._has_failed = False
        except (OSError, HTTPException) as error:  # the latter from a port with another protocol, such as gRPC
            if not self._has_failed:
                logger.warning("%d spans could not be sent to %s: %s", len(spans), self._url, error)
            self._has_failed = True


def tracer_of(service: str, environment: Mapping[str, str] = os.environ) -> Tracer | None:
    """The tracer of a served model; None if the environment names no collector."""
    url = environment.get(VARIABLE)
    return None if url is None else Tracer(url, service)


def _pairs(attributes: Mapping[str, str | int]) -> list[dict[str, Any]]:
    return [
        {"key": key, "value": {"stringValue": value} if isinstance(value, str) else {"intValue": str(value)}}
        for key, value in attributes.items()
    ]
