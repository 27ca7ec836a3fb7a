"""Tuning: the candidates for window and budget, and the choice of the fastest."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.bench.measure import MeasureOptions
from pipeline.bench.report.results import RequestRecord, SummaryRow
from pipeline.bench.tune import BUDGETS, Candidate, candidates, tune, winners, with_candidate
from pipeline.config.resolution import resolve_config
from pipeline.config.schema import LookaheadConfig
from pipeline.errors import UserError


def row(strategy: str, speedup: float, low: float | None = None, acceptance_length: float = 1.5) -> SummaryRow:
    return SummaryRow.model_construct(
        task="overall", strategy=strategy, speedup=speedup, speedup_low=low, acceptance_length=acceptance_length
    )


def test_every_candidate_fits_the_engine_and_is_what_its_name_says() -> None:
    resolved = resolve_config("smollm2-135m", "latency", ("engine.max_draft_tokens=32",))
    found = candidates(resolved)
    assert [each.max_draft_tokens for each in found if each.max_draft_tokens] == [
        size for size in BUDGETS if size <= 32
    ]
    windows = [each.lookahead for each in found if each.lookahead is not None]
    assert windows
    assert all(window.max_draft_len <= 32 for window in windows)
    for candidate in found:
        under = with_candidate(resolved, candidate)
        assert under.profile.drafting.planner == "fixed"
        assert under.profile.engine == resolved.profile.engine
        if candidate.lookahead is not None:
            assert under.lookahead == candidate.lookahead
        else:
            assert under.profile.drafting.max_draft_tokens == candidate.max_draft_tokens
            assert under.lookahead == resolved.lookahead


def test_an_engine_without_drafts_leaves_nothing_to_tune() -> None:
    overrides = (
        "engine.max_draft_tokens=0",
        "drafting.max_draft_tokens=0",
        "drafting.strategy=none",
        "drafting.sources=[]",
    )
    resolved = resolve_config("smollm2-135m", "latency", overrides)
    with pytest.raises(UserError, match="leaves nothing to tune"):
        candidates(resolved)


@pytest.mark.parametrize(("dtype", "is_fault"), [("float32", True), ("bfloat16", False)])
def test_changed_tokens_are_a_fault_unless_passes_round_differently(
    dtype: str, is_fault: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = {"id": "a", "task": "t", "prompt_ids": [1], "steps": 2, "draft_tokens": 0, "accepted_tokens": 0}
    measured |= {"acceptance_lengths": [1, 1], "seconds": 1.0, "ttft_s": 0.5, "draft_seconds": 0.0}
    records = [
        RequestRecord(**measured, strategy=name, output_ids=[1, token], identical=token == 2, finish_reason="length")
        for name, token in (("none", 2), ("budget 4", 3))
    ]
    monkeypatch.setattr("pipeline.bench.tune.measure", lambda *arguments: records)
    artifact = SimpleNamespace(engine_dir=tmp_path, resolved=SimpleNamespace(dtype=dtype))  # not of the lean pass
    opened: Any = SimpleNamespace(artifact=artifact, contender=lambda name: name, codec=None)
    if is_fault:
        with pytest.raises(UserError, match="budget 4 changed tokens"):
            tune(opened, [], [], MeasureOptions())
    else:
        assert [each.num_identical for each in tune(opened, [], [], MeasureOptions())] == [1, 0]


def test_budget_and_window_win_separately_and_none_wins_where_plain_decoding_is_faster() -> None:
    window = LookaheadConfig.of(2, 3, 3)
    chosen = [Candidate("a", "hybrid", 4), Candidate("b", "hybrid", 8), Candidate("w", "lookahead", lookahead=window)]
    assert winners(chosen, [row("none", 1.0), row("a", 1.2), row("b", 1.4), row("w", 1.1)]) == (8, window)
    assert winners(chosen, [row("none", 1.0), row("a", 1.2), row("b", 0.9), row("w", 0.8)]) == (4, None)
    assert winners(chosen, [row("none", 1.0), row("a", 0.7), row("b", 0.9), row("w", 1.1)]) == (None, window)


def test_a_candidate_wins_only_if_its_whole_interval_is_faster() -> None:
    chosen = [Candidate("a", "hybrid", 4), Candidate("b", "hybrid", 8)]
    assert winners(chosen, [row("none", 1.0, 1.0), row("a", 1.2, 1.1), row("b", 1.4, 0.9)]) == (4, None)
    assert winners(chosen, [row("none", 1.0, 1.0), row("a", 1.2, 0.98), row("b", 1.4, 0.9)]) == (None, None)


def test_a_candidate_without_accepted_drafts_does_not_win() -> None:
    chosen = [Candidate("a", "hybrid", 4), Candidate("b", "hybrid", 8)]
    assert winners(chosen, [row("none", 1.0), row("a", 1.6, acceptance_length=1.0), row("b", 1.2)]) == (8, None)
