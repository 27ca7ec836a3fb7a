"""Replay of recorded outputs: steps counted by hand, budgets, regimes, and tasks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lookahead_research.known_outputs import ReplayRow, load_replay_rows
from lookahead_research.recorded_rows import RecordedRows
from lookahead_research.replay import replay, source_parts

from pipeline.decoding.request import StepResult
from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.sources.prompt import PromptSource
from pipeline.decoding.tree import DraftTree, IntArray, chain
from pipeline.errors import UserError

PERIOD = [5, 6, 7, 8]


def row(prompt: list[int], output: list[int], task: str = "a", dataset: str = "d", **more: Any) -> ReplayRow:
    return ReplayRow(dataset, task, np.asarray(prompt, np.int32), np.asarray(output, np.int32), **more)


def write(path: Path, values: list[Any]) -> Path:
    path.write_text("\n".join(json.dumps(value) for value in values))
    return path


def steps(rows: list[ReplayRow], source: str, regime: str, budget: int = 8, task: str = "all") -> int:
    results = replay(rows, source, [budget], [regime])
    return next(result.steps for result in results if result.task == task)


def test_an_unpredictable_output_takes_a_step_per_token() -> None:
    rows = [row([1, 2], [3, 4, 5, 6])]
    (result,) = [found for found in replay(rows, "pool", [8], ["cold"]) if found.task == "all"]
    assert (result.tokens, result.steps, result.mean_acceptance_length) == (4, 4, 1.0)


def test_steps_of_a_repetition_are_those_counted_by_hand() -> None:
    # Prefill: 5. Then the pool has (5 -> 6 7 8 5): 6 7 8 5 and one more, 6; then 7 8 5 6 and 7.
    rows = [row([*PERIOD, *PERIOD], [*PERIOD, *PERIOD, *PERIOD][:11])]
    results = replay(rows, "pool", [8], ["cold"])
    assert results[-1].steps == 3
    assert results[-1].mean_acceptance_length == pytest.approx(11 / 3)
    assert results[-1].draft_tokens_per_step == pytest.approx(4.0)


def test_the_budget_limits_what_a_step_can_accept() -> None:
    rows = [row(PERIOD * 3, PERIOD * 3)]
    assert steps(rows, "pool", "cold", budget=1) == 1 + 6
    assert steps(rows, "pool", "cold", budget=4) == 1 + 3


def test_tasks_are_reported_each_and_together_for_every_budget_and_regime() -> None:
    rows = [row(PERIOD * 2, PERIOD, task="a"), row([1], [2, 3], task="b"), row([1], [2, 3], task="b")]
    seen: list[int] = []
    results = replay(rows, "pool", [4, 8], ["cold", "warm"], on_row=lambda: seen.append(1))
    assert [(r.budget, r.regime, r.task) for r in results] == [
        (budget, regime, task) for budget in (4, 8) for regime in ("cold", "warm") for task in ("a", "b", "all")
    ]
    assert len(seen) == 3 * 4
    for first in range(0, len(results), 3):
        a, b, both = results[first : first + 3]
        assert both.tokens == a.tokens + b.tokens
        assert both.steps == a.steps + b.steps


def with_candidates(found: ReplayRow) -> ReplayRow:
    """With the rows from which the output was chosen; the others have no candidates."""
    chosen_from = slice(len(found.prompt_ids) - 1, -1)
    ids, probs = np.full((len(found.text), 2), -1, np.int32), np.zeros((len(found.text), 2), np.float32)
    ids[chosen_from], probs[chosen_from] = [[token, 0] for token in found.output_ids], [0.9, 0.05]
    return replace(found, target=RecordedRows(found.text, ids, probs))


def test_recycling_takes_part_where_rows_carry_candidates() -> None:
    output = [3, 4, 3, 5, 3, 4, 3, 5, 3, 4]
    assert steps([row([1], output)], "recycling", "cold") == 10
    assert steps([with_candidates(row([1], output))], "recycling", "cold") < 8


def test_regimes_differ_in_what_is_known_from_other_rows() -> None:
    output = [3, 4, 5, 6, 7, 8]
    same = [with_candidates(row([1, 2], output)) for _ in range(3)]
    assert steps(same, "recycling", "cold") == 18
    assert steps(same, "recycling", "warm") == 6 + 2 + 2
    assert steps(same, "recycling", "prewarmed") == 6
    elsewhere = [with_candidates(row([1, 2], output, dataset=name)) for name in "abc"]
    assert steps(elsewhere, "recycling", "warm") == steps(elsewhere, "recycling", "prewarmed") == 18


def test_a_prewarmed_source_has_served_the_other_rows_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[int]] = []
    started = PromptSource.start
    updated = PromptSource.update

    def start(self: PromptSource, request_id: str, prompt_ids: IntArray, namespace: str) -> None:
        seen.append([])
        started(self, request_id, prompt_ids, namespace)

    def update(self: PromptSource, request_id: str, step: StepResult) -> None:
        seen[-1] = [*step.context.tolist(), *step.token_ids]
        updated(self, request_id, step)

    monkeypatch.setattr(PromptSource, "start", start)
    monkeypatch.setattr(PromptSource, "update", update)
    texts = [[1, 2, 3, 4, 5], [6, 7, 8]]
    replay([row(text[:2], text[2:]) for text in texts], "prompt", [8], ["prewarmed"])
    assert seen == [texts[1], texts[0], texts[0], texts[1]]


def test_drafts_are_asked_for_as_if_the_end_were_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[DraftBudget] = []

    def propose(self: PromptSource, request_id: str, context: IntArray, budget: DraftBudget) -> DraftTree:
        asked.append(budget)
        return chain([3] * budget.max_depth)

    monkeypatch.setattr(PromptSource, "propose", propose)
    # Prefill 9; then 3 3 and 8; then only 3, which ends the output and was the first of two draft tokens.
    (result, _) = replay([row([1], [9, 3, 3, 8, 3])], "prompt", [2], ["cold"], max_draft_len=2)
    assert asked == [DraftBudget(2, 2)] * 2
    assert (result.tokens, result.steps, result.draft_tokens_per_step) == (5, 3, 2.0)


def test_a_prediction_is_used() -> None:
    output = list(range(10, 30))
    assert steps([row([1], output)], "supplied", "cold") == 20
    predicted = row([1], output, prediction_ids=np.asarray(output, np.int32))
    assert steps([predicted], "supplied", "cold", budget=12) == 3


def test_rows_are_read_from_json_lines(tmp_path: Path) -> None:
    path = write(
        tmp_path / "rows.jsonl",
        [
            {"dataset": "x", "category": "qa", "id": 1, "prompt_ids": [1, 2], "output_ids": [3]},
            {"task": "t", "prompt_ids": [1], "output_ids": [3, 4], "prediction_ids": [3]},
        ],
    )
    first, second = load_replay_rows(path)
    assert (first.dataset, first.task, first.prompt_ids.tolist(), first.output_ids.tolist()) == ("x", "qa", [1, 2], [3])
    assert first.prediction_ids is None
    assert second.task == "t"
    assert second.prediction_ids is not None
    assert second.prediction_ids.tolist() == [3]


@pytest.mark.parametrize(("strategies", "expected"), [(["trie", "none", "trie"], [11]), (["trie", "hybrid"], [10])])
def test_of_a_bench_file_the_plain_outputs_count_once(
    tmp_path: Path, strategies: list[str], expected: list[int]
) -> None:
    requests = [
        {"id": str(n), "task": "t", "strategy": strategy, "repeat": repeat, "prompt_ids": [1], "output_ids": [10 + n]}
        for n, strategy in enumerate(strategies)
        for repeat in (0, 1)
    ]
    path = tmp_path / "bench.json"
    path.write_text(json.dumps({"manifest": {}, "requests": requests}, indent=1))
    assert [int(found.output_ids[0]) for found in load_replay_rows(path)] == expected


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no outputs"),
        ("{", "line 1 is not JSON"),
        ("[" * 100_000, "line 1 is nested too deeply"),
        (f'{{"prompt_ids": [{"9" * 5000}]}}', "line 1 has a number with too many digits"),
        ("[1]", "must be an object"),
        ('{"prompt_ids": [1]}', "line 1: output_ids"),
        ('{"prompt_ids": [], "output_ids": [1]}', "prompt_ids is empty"),
        ('{"prompt_ids": [1.5], "output_ids": [1]}', "prompt_ids must be"),
        ('{"prompt_ids": [-1], "output_ids": [1]}', "prompt_ids must be"),
        ('{"prompt_ids": [1], "output_ids": [2147483647]}', "line 1: output_ids must be .* 0 to 2147483646"),
        ('{"prompt_ids": [1], "output_ids": [1], "task": "all"}', "line 1: the task 'all'"),
        ('{"prompt_ids": [1], "output_ids": [1], "category": "all"}', "line 1: the task 'all'"),
        ('{"requests": 3}', "requests must be"),
        ('{"requests": []}', "no outputs"),
    ],
)
def test_files_that_cannot_be_replayed_are_refused_with_a_reason(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    with pytest.raises(UserError, match=complaint):
        load_replay_rows(path)


def test_a_row_without_a_task_is_of_the_task_named_task(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [{"prompt_ids": [1], "output_ids": [2], "task": None, "dataset": None}])
    (found,) = load_replay_rows(path)
    assert (found.task, found.dataset) == ("task", "")


def test_a_file_that_is_no_text_is_the_users(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\xff\xfe{}")
    with pytest.raises(UserError, match="cannot be read as UTF-8 text"):
        load_replay_rows(path)


def test_a_prediction_may_hold_tokens_that_the_outputs_do_not(tmp_path: Path) -> None:
    predicted = row([1], [2, 3, 4, 5], prediction_ids=np.asarray([2, 3, 500_000], np.int32))
    assert steps([predicted], "hybrid", "cold") == 3


def test_a_missing_file_a_wrong_word_or_number_is_the_users(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        load_replay_rows(tmp_path / "none.jsonl")
    with pytest.raises(UserError, match="source is 'trie\\+oracle'"):
        source_parts("trie+oracle")
    with pytest.raises(UserError, match="names one source twice"):
        source_parts("trie+trie")


def test_a_source_that_fails_ends_the_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(PromptSource, "propose", fail)
    with pytest.raises(RuntimeError, match="draft sources failed: prompt"):
        steps([row(PERIOD, PERIOD)], "prompt", "cold")
