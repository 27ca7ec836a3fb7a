"""Errors of a bench are reported before the measurement, with the row."""

from __future__ import annotations

import pytest

from pipeline.bench.bench import BenchPlan, check_lengths, check_plan, longest_prompt, num_requests
from pipeline.bench.data.workload import WorkloadRow
from pipeline.bench.measure import MeasureOptions
from pipeline.config.resolution import resolve_config
from pipeline.errors import UserError
from tests.unit.bench.data.test_workload import fake_codec

# With its special token a raw prompt of the fake tokenizer is one token longer than its text.
LONGEST = 255


def check(*rows: WorkloadRow, turns: str = "first", strategies: tuple[str, ...] = ("none", "trie")) -> None:
    overrides = ("backend=torch", "device=cpu", "engine.max_seq_len=256")
    resolved = resolve_config("tiny-random-llama", "latency", overrides)
    plan, options = BenchPlan(strategies), MeasureOptions(turns=turns, raw=True)  # type: ignore[arg-type]
    check_plan(resolved, plan, options)
    check_lengths(fake_codec(), rows, longest_prompt(resolved, plan), options)


@pytest.mark.parametrize("strategies", [("none",), ("none", "auto")])
def test_a_prompt_that_does_not_fit_is_refused_with_its_row(strategies: tuple[str, ...]) -> None:
    short, fits = WorkloadRow("a", "t", ("x",)), WorkloadRow("b", "t", ("x" * (LONGEST - 1),))
    check(short, fits, strategies=strategies)
    with pytest.raises(UserError, match="The prompt of row 'c' has 256 tokens; the engine takes at most 255"):
        check(short, fits, WorkloadRow("c", "t", ("x" * LONGEST,)), strategies=strategies)


def test_later_turns_count_with_all_that_is_known_of_them() -> None:
    row = WorkloadRow("a", "t", ("x" * 200, "y" * 60))
    check(row)
    with pytest.raises(UserError, match="turn 2 of row 'a' has 261 tokens, answers not counted"):
        check(row, turns="all")


def test_transformers_is_no_baseline_of_engines_that_run_in_a_server_only() -> None:
    resolved = resolve_config("llama2-7b", "latency", ("backend=tensorrt_llm",))
    plan = BenchPlan(("none",), ("hf",), url="localhost:8001")
    with pytest.raises(UserError, match="hf and hf-prompt-lookup load the weights of an engine in process"):
        check_plan(resolved, plan, MeasureOptions())


def test_requests_are_turns_times_contenders_times_repeats() -> None:
    rows = [WorkloadRow("a", "t", ("x", "y")), WorkloadRow("b", "t", ("z",))]
    plan = BenchPlan(("none", "trie"), ("hf",))
    assert num_requests(rows, plan, MeasureOptions(turns="first", repeats=2)) == 2 * 2 * 3
    assert num_requests(rows, plan, MeasureOptions(turns="all")) == 3 * 3
