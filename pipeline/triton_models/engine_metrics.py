"""Triton metrics of the engine: prompt tokens reused from the KV cache, and cancelled requests."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pipeline.engine.contract import ReuseCounters

_ABANDONED = "num_abandoned"
# By field of `ReuseCounters`, and one more.
_METRICS = {
    "num_opened": ("lookahead_kv_sequences_total", "Sequences opened in the engine; each step of a request is one."),
    "num_hits": ("lookahead_kv_prefix_hits_total", "Sequences of which a prefix was in the KV cache."),
    "num_prompt_tokens": ("lookahead_kv_prompt_tokens_total", "Tokens that sequences were opened with."),
    "num_reused_tokens": ("lookahead_kv_reused_tokens_total", "Such tokens whose KV was in the cache."),
    _ABANDONED: ("lookahead_engine_abandoned_total", "Requests that the engine ended as their client had left."),
}


class EngineMetrics:
    """pb_utils: Triton's module. Used from one thread."""

    def __init__(self, pb_utils: Any) -> None:
        kind = pb_utils.MetricFamily
        # A family must outlive its metrics.
        self._families = {
            field: kind(name=name, description=description, kind=kind.COUNTER)
            for field, (name, description) in _METRICS.items()
        }
        self._metrics = {field: family.Metric() for field, family in self._families.items()}
        self._entered = dict.fromkeys(_METRICS, 0)

    def record(self, counters: ReuseCounters, num_abandoned: int) -> None:
        """Enter what has come since the last time. Both count since the start."""
        now = {**asdict(counters), _ABANDONED: num_abandoned}
        for field, metric in self._metrics.items():
            if now[field] > self._entered[field]:
                metric.increment(now[field] - self._entered[field])
                self._entered[field] = now[field]

    def close(self) -> None:
        vars(self).clear()  # Triton's process dies if its metrics are still there when the interpreter ends
