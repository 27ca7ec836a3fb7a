"""Tuning: the candidates for window and budget, and the choice of the fastest."""

import pytest

from pipeline.bench.report.results import SummaryRow
from pipeline.bench.tune import BUDGETS, Candidate, candidates, winners, with_candidate
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
