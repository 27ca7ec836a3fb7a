"""Metrics of the served models on Triton's metrics port.

Each update of a metric is a message to the server, which is slow. So the BLS model records a request once, at its end,
from a separate thread, and the engine records its counters periodically.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the process of an engine has metrics of its own only
    from pipeline.engine.contract import ReuseCounters
    from pipeline.triton_models.generation import Generation

_SECONDS_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_BUCKETS = {
    "acceptance_length": (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 16.0),
    "time_to_first_token_seconds": _SECONDS_BUCKETS,
    "inter_token_seconds": _SECONDS_BUCKETS,
}
_REQUESTS = "requests_total"
# Kind and description by name, without the prefix lookahead_.
BLS_METRICS = {
    _REQUESTS: ("COUNTER", "Requests by strategy and outcome."),
    "steps_total": ("COUNTER", "Verify steps."),
    "output_tokens_total": ("COUNTER", "Tokens generated."),
    "draft_tokens_total": ("COUNTER", "Draft tokens verified."),
    "accepted_tokens_total": ("COUNTER", "Draft tokens accepted."),
    "engine_calls_total": ("COUNTER", "Calls from the BLS model to the engine."),
    "engine_calls_without_draft_total": ("COUNTER", "Calls to the engine without a draft tree."),
    "acceptance_length": ("HISTOGRAM", "Tokens emitted per verify step."),
    "time_to_first_token_seconds": ("HISTOGRAM", "Time from a request's arrival to its first token."),
    "inter_token_seconds": (
        "HISTOGRAM",
        "Time between two responses of the engine, divided by the tokens of the later one.",
    ),
    "trie_nodes": ("GAUGE", "Nodes of the shared trie in use."),
    "trie_bytes": ("GAUGE", "Memory of the shared trie."),
    "draft_source_failures": (
        "GAUGE",
        "Failed calls to draft sources since the start. They cost speed, never a token.",
    ),
}
ENGINE_METRICS = {
    "kv_sequences_total": ("COUNTER", "Sequences opened in the engine, one for each call."),
    "kv_prefix_hits_total": ("COUNTER", "Sequences of which a prefix was in the KV cache."),
    "kv_prompt_tokens_total": ("COUNTER", "Tokens of a sequence when it was opened: prompt and output so far."),
    "kv_reused_tokens_total": ("COUNTER", "Those of them whose keys and values were in the KV cache."),
    "engine_abandoned_total": ("COUNTER", "Requests that were stopped, or whose client left."),
}


# Called with an ended request.
OnEnd = Callable[["Generation"], None]


class Metrics:
    """The metrics of the BLS model. pb_utils: Triton's module. gauges: returns the values of the gauges by name; called
    at the start, and after each request."""

    def __init__(self, pb_utils: Any, gauges: Callable[[], Mapping[str, int]]) -> None:
        self._families = _families(pb_utils, BLS_METRICS)
        self._metrics = {
            name: family.Metric(**({"buckets": list(_BUCKETS[name])} if name in _BUCKETS else {}))
            for name, family in self._families.items()
            if name != _REQUESTS
        }
        self._requests: dict[tuple[str, str], Any] = {}
        self._gauges = gauges
        self._recorded: Mapping[str, int] = {}
        self._closing = False
        self._queue: queue.SimpleQueue[Generation | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="metrics", daemon=True)
        self._thread.start()

    def record(self, request: Generation) -> None:
        """Queue an ended request for recording."""
        self._queue.put(request)

    def close(self) -> None:
        """Stop the thread. Drops queued entries: metrics of an unloaded model are not read, and thousands of
        entries would delay its end."""
        self._closing = True
        self._queue.put(None)
        self._thread.join()
        vars(self).clear()  # Triton's process crashes if a metric still exists when the interpreter ends

    def _work(self) -> None:
        self._record_gauges()
        while (request := self._queue.get()) is not None and not self._closing:
            self._record(request)
            self._record_gauges()

    def _record_gauges(self) -> None:
        # The processes of the model share the gauges, which are the sums of all.
        now = self._gauges()
        _add_changes(self._metrics, self._recorded, now)
        self._recorded = now

    def _record(self, request: Generation) -> None:
        key, statistics, metrics = (request.engine.strategy, request.outcome), request.statistics, self._metrics
        lengths = statistics.acceptance_lengths
        if key not in self._requests:
            labels = {"strategy": request.engine.strategy, "outcome": request.outcome}
            self._requests[key] = self._families[_REQUESTS].Metric(labels=labels)
        self._requests[key].increment(1)
        metrics["steps_total"].increment(len(lengths))
        metrics["output_tokens_total"].increment(request.num_output_tokens)
        metrics["draft_tokens_total"].increment(statistics.num_draft_tokens)
        metrics["accepted_tokens_total"].increment(statistics.num_accepted_tokens)
        metrics["engine_calls_total"].increment(request.num_calls)
        metrics["engine_calls_without_draft_total"].increment(request.num_calls_without_draft)
        for length in lengths:
            metrics["acceptance_length"].observe(length)
        if request.step_times:
            metrics["time_to_first_token_seconds"].observe(request.step_times[0] - request.started)
        for (before, after), size in zip(pairwise(request.step_times), request.step_sizes[1:], strict=True):
            metrics["inter_token_seconds"].observe((after - before) / size)


class EngineMetrics:
    """Prompt tokens reused from the KV cache, and cancelled requests. pb_utils: Triton's module. Used from one
    thread."""

    def __init__(self, pb_utils: Any) -> None:
        self._families = _families(pb_utils, ENGINE_METRICS)
        self._metrics = {name: family.Metric() for name, family in self._families.items()}
        self._recorded: Mapping[str, int] = {}

    def record(self, counters: ReuseCounters, num_abandoned: int) -> None:
        """Add the increase since the previous call. counters, num_abandoned: totals since the start."""
        now = {
            "kv_sequences_total": counters.num_opened,
            "kv_prefix_hits_total": counters.num_hits,
            "kv_prompt_tokens_total": counters.num_prompt_tokens,
            "kv_reused_tokens_total": counters.num_reused_tokens,
            "engine_abandoned_total": num_abandoned,
        }
        _add_changes(self._metrics, self._recorded, now)
        self._recorded = now

    def close(self) -> None:
        vars(self).clear()  # see `Metrics.close`


def _add_changes(metrics: Mapping[str, Any], before: Mapping[str, int], now: Mapping[str, int]) -> None:
    """Add to each metric the change of its value since `before`, where missing values are 0."""
    for name, value in now.items():
        if change := value - before.get(name, 0):
            metrics[name].increment(change)


def _families(pb_utils: Any, metrics: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    """The family of each metric, to be kept as long as the metric."""
    make = pb_utils.MetricFamily
    return {
        name: make(name=f"lookahead_{name}", description=description, kind=getattr(make, kind))
        for name, (kind, description) in metrics.items()
    }
