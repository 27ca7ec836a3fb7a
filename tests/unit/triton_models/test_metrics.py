"""Metrics are updated in a separate thread, against a stand-in for Triton's metric classes."""

from __future__ import annotations

import threading
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.decoding.session import GenerationStatistics
from pipeline.engine.contract import ReuseCounters
from pipeline.triton_models.metrics import EngineMetrics, Metrics
from tests.patience import PATIENCE_S
from tests.servers import wait_for


class Pb:
    """Counts what is entered by metric name; calls wait until `opened` is set."""

    def __init__(self) -> None:
        self.values: Counter[str] = Counter()
        self.opened = threading.Event()
        pb = self

        class Family:
            COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"

            def __init__(self, name: str, description: str, kind: str) -> None:
                self.name = name

            def Metric(self, **options: Any) -> Any:  # Triton's name
                def add(value: float) -> None:
                    pb.opened.wait(PATIENCE_S)
                    pb.values[self.name] += value

                def assign(value: float) -> None:
                    pb.values[self.name] = value

                return SimpleNamespace(increment=add, set=assign, observe=add)

        self.MetricFamily = Family


def gauges(nodes: int = 0, trie_bytes: int = 0, failures: int = 0) -> dict[str, int]:
    return {"trie_nodes": nodes, "trie_bytes": trie_bytes, "draft_source_failures": failures}


def request() -> Any:
    """An ended request."""
    return SimpleNamespace(
        engine=SimpleNamespace(strategy="trie"),
        outcome="length",
        started=0.0,
        # The second response holds the tokens of two steps.
        step_times=[0.1, 0.2, 0.4],
        step_sizes=[1, 4, 1],
        statistics=GenerationStatistics(num_draft_tokens=8, num_accepted_tokens=2, acceptance_lengths=[1, 3, 1, 1]),
        num_output_tokens=6,
        num_calls=3,
        num_calls_without_draft=1,
    )


def test_an_ended_request_is_entered():
    pb = Pb()
    pb.opened.set()
    metrics = Metrics(pb, gauges)
    metrics.record(request())
    wait_for(lambda: pb.values["lookahead_inter_token_seconds"] == pytest.approx(0.1 / 4 + 0.2))
    metrics.close()
    assert pb.values["lookahead_time_to_first_token_seconds"] == 0.1
    assert pb.values["lookahead_requests_total"] == 1
    assert pb.values["lookahead_steps_total"] == 4
    assert pb.values["lookahead_output_tokens_total"] == 6
    assert pb.values["lookahead_acceptance_length"] == 6


def test_a_trie_that_was_loaded_is_entered_before_the_first_request():
    pb = Pb()
    pb.opened.set()
    metrics = Metrics(pb, lambda: gauges(5, 100))
    wait_for(lambda: pb.values["lookahead_trie_bytes"])
    metrics.close()
    assert pb.values["lookahead_trie_nodes"] == 5


def test_gauges_are_the_sums_of_the_processes_of_the_model():
    """Triton has one gauge for all of them."""
    pb = Pb()
    pb.opened.set()
    values = [gauges(5, 100), gauges(7, 100, 1)]
    one, other = Metrics(pb, lambda: values[0]), Metrics(pb, lambda: values[1])
    wait_for(lambda: pb.values["lookahead_trie_nodes"] == 12)
    values[:] = gauges(3, 200), gauges(9, 100, 3)
    one.record(request())
    other.record(request())
    wait_for(lambda: (pb.values["lookahead_trie_bytes"], pb.values["lookahead_draft_source_failures"]) == (300, 3))
    one.close()
    other.close()
    assert pb.values["lookahead_trie_nodes"] == 12


def test_an_unloaded_model_does_not_wait_for_its_metrics():
    pb = Pb()
    metrics = Metrics(pb, gauges)
    for _ in range(1000):
        metrics.record(request())
    closing = threading.Thread(target=metrics.close)
    closing.start()
    wait_for(lambda: getattr(metrics, "_closing", True))  # `close` may be over, if the thread was idle
    pb.opened.set()
    closing.join(PATIENCE_S)
    assert not closing.is_alive()
    assert pb.values["lookahead_requests_total"] <= 1


def test_what_the_engine_found_in_its_cache_is_entered_once():
    pb = Pb()
    pb.opened.set()
    metrics = EngineMetrics(pb)
    metrics.record(ReuseCounters(num_hits=1, num_opened=2, num_reused_tokens=30, num_prompt_tokens=50), 0)
    metrics.record(ReuseCounters(num_hits=1, num_opened=3, num_reused_tokens=30, num_prompt_tokens=57), 2)
    assert pb.values == {
        "lookahead_kv_sequences_total": 3,
        "lookahead_kv_prefix_hits_total": 1,
        "lookahead_kv_prompt_tokens_total": 57,
        "lookahead_kv_reused_tokens_total": 30,
        "lookahead_engine_abandoned_total": 2,
    }
    metrics.close()
