"""Metrics of the BLS model on Triton's metrics port.

A metric call is a message to the server, so each request is recorded once, at its end, from a separate thread.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

ACCEPTANCE_BUCKETS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
SECONDS_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """One ended request. outcome: a finish reason or "error". step_times: when the tokens of each step came, seconds on
    the clock of `started`."""

    strategy: str
    outcome: str
    started: float
    step_times: Sequence[float]
    acceptance_lengths: Sequence[int]
    num_draft_tokens: int
    num_accepted_tokens: int
    num_output_tokens: int
    num_calls: int
    num_calls_without_draft: int


@dataclass(frozen=True, slots=True)
class TrieMetrics:
    """The shared trie: nodes in use, bytes of memory, and the calls to draft sources that failed since the start."""

    num_nodes: int
    num_bytes: int
    num_failures: int


class Metrics:
    """The metric families of this process. pb_utils: Triton's module."""

    def __init__(self, pb_utils: Any) -> None:
        self._pb = pb_utils
        self._families: list[Any] = []  # a family must outlive its metrics
        self._requests: dict[tuple[str, str], Any] = {}
        self._request_family = self._family("requests_total", "Requests by strategy and outcome.", "COUNTER")
        self._steps = self._metric("steps_total", "Verify steps.", "COUNTER")
        self._output = self._metric("output_tokens_total", "Tokens generated.", "COUNTER")
        self._drafted = self._metric("draft_tokens_total", "Draft tokens verified.", "COUNTER")
        self._accepted = self._metric("accepted_tokens_total", "Draft tokens accepted.", "COUNTER")
        self._calls = self._metric("engine_calls_total", "Calls from the BLS model to the engine.", "COUNTER")
        self._plain_calls = self._metric(
            "engine_calls_without_draft_total", "Such calls without a draft tree.", "COUNTER"
        )
        self._off_share = self._metric("speculation_off_share", "Share of engine calls without a draft tree.", "GAUGE")
        self._acceptance = self._metric(
            "acceptance_length", "Tokens emitted per verify step.", "HISTOGRAM", ACCEPTANCE_BUCKETS
        )
        self._first = self._metric(
            "time_to_first_token_seconds", "From a request's arrival to its first token.", "HISTOGRAM", SECONDS_BUCKETS
        )
        self._between = self._metric(
            "inter_token_seconds", "Between the tokens of consecutive steps, per token.", "HISTOGRAM", SECONDS_BUCKETS
        )
        self._trie_nodes = self._metric("trie_nodes", "Nodes of the shared trie in use.", "GAUGE")
        self._trie_bytes = self._metric("trie_bytes", "Memory of the shared trie.", "GAUGE")
        self._failures = self._metric(
            "draft_source_failures", "Failed calls to draft sources since the start.", "GAUGE"
        )
        self._num_calls = self._num_plain_calls = 0
        self._closing = False
        self._queue: queue.SimpleQueue[tuple[RequestMetrics, TrieMetrics] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="metrics", daemon=True)
        self._thread.start()

    def record(self, request: RequestMetrics, trie: TrieMetrics) -> None:
        """Enter an ended request, soon."""
        self._queue.put((request, trie))

    def close(self) -> None:
        """Stop. Waiting entries are dropped: the metrics of an unloaded model are not read, and thousands of entries
        would delay its end."""
        self._closing = True
        self._queue.put(None)
        self._thread.join()
        vars(self).clear()  # Triton's process dies if its metrics are still there when the interpreter ends

    def _work(self) -> None:
        while (item := self._queue.get()) is not None and not self._closing:
            self._enter(*item)

    def _enter(self, request: RequestMetrics, trie: TrieMetrics) -> None:
        key = request.strategy, request.outcome
        if key not in self._requests:
            self._requests[key] = self._request_family.Metric(labels={"strategy": key[0], "outcome": key[1]})
        self._requests[key].increment(1)
        self._steps.increment(len(request.acceptance_lengths))
        self._output.increment(request.num_output_tokens)
        self._drafted.increment(request.num_draft_tokens)
        self._accepted.increment(request.num_accepted_tokens)
        self._calls.increment(request.num_calls)
        self._plain_calls.increment(request.num_calls_without_draft)
        self._num_calls += request.num_calls
        self._num_plain_calls += request.num_calls_without_draft
        if self._num_calls:
            self._off_share.set(self._num_plain_calls / self._num_calls)
        for length in request.acceptance_lengths:
            self._acceptance.observe(length)
        if request.step_times:
            self._first.observe(request.step_times[0] - request.started)
        for (before, after), length in zip(pairwise(request.step_times), request.acceptance_lengths[1:], strict=False):
            self._between.observe((after - before) / max(length, 1))
        self._trie_nodes.set(trie.num_nodes)
        self._trie_bytes.set(trie.num_bytes)
        self._failures.set(trie.num_failures)

    def _family(self, name: str, description: str, kind: str) -> Any:
        families = self._pb.MetricFamily
        family = families(name=f"lookahead_{name}", description=description, kind=getattr(families, kind))
        self._families.append(family)
        return family

    def _metric(self, name: str, description: str, kind: str, buckets: Sequence[float] = ()) -> Any:
        options = {"buckets": [float(bucket) for bucket in buckets]} if buckets else {}
        return self._family(name, description, kind).Metric(**options)
