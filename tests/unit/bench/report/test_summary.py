"""Figures of a measurement, against literal values and properties."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.bench.report.results import OVERALL, RequestRecord
from pipeline.bench.report.summary import speedup_of, summarize


def record(strategy: str = "none", seconds: float = 1.0, tokens: int = 10, **fields: object) -> RequestRecord:
    values: dict[str, object] = {
        "id": "a",
        "task": "t",
        "prompt_ids": [1],
        "output_ids": list(range(tokens)),
        "steps": tokens,
        "draft_tokens": 0,
        "accepted_tokens": 0,
        "acceptance_lengths": [1] * tokens,
        "ttft_s": 0.1,
        "draft_seconds": 0.0,
        "finish_reason": "length",
        "identical": True,
    }
    return RequestRecord(strategy=strategy, seconds=seconds, **(values | fields))


def test_acceptance_length_is_tokens_over_steps_pooled_not_a_mean_of_means() -> None:
    records = [record("trie", steps=5, tokens=10), record("trie", id="b", steps=30, tokens=30)]
    (row, overall) = summarize(records)
    assert row.acceptance_length == pytest.approx(40 / 35)
    assert overall.task == OVERALL
    assert row.speedup is None


def test_speedup_is_the_ratio_of_tokens_per_second_on_the_same_prompts() -> None:
    records = [
        record("none", 2.0),
        record("trie", 1.0),
        record("none", 6.0, id="b", task="u"),
        record("trie", 2.0, id="b", task="u"),
    ]
    rows = {(row.task, row.strategy): row for row in summarize(records)}
    assert rows["t", "trie"].speedup == pytest.approx(2.0)
    assert rows["u", "trie"].speedup == pytest.approx(3.0)
    assert rows[OVERALL, "trie"].speedup == pytest.approx(8 / 3)
    assert rows[OVERALL, "none"].speedup == 1.0
    assert rows[OVERALL, "trie"].tokens_per_s == pytest.approx(20 / 3)


def test_the_median_of_repeats_counts() -> None:
    records = [record("none", seconds, repeat=repeat) for repeat, seconds in enumerate([1.0, 1.0, 9.0])]
    assert summarize(records)[0].tokens_per_s == pytest.approx(10.0)


def test_empty_outputs_of_the_baseline_have_no_ratio() -> None:
    base, own = [record("none", tokens=0), record("none", id="b")], [record("trie", 0.5, tokens=0)]
    assert speedup_of(own, base) == (None, None, None)
    assert speedup_of([*own, record("trie", 0.5, id="b")], base) == (2.0, 2.0, 2.0)


def test_a_single_pair_has_no_interval_and_equal_prompts_a_tight_one() -> None:
    one = speedup_of([record("trie", 1.0)], [record("none", 2.0)])
    assert one == (2.0, None, None)
    many = speedup_of(
        [record("trie", 1.0, id=str(i)) for i in range(5)], [record("none", 2.0, id=str(i)) for i in range(5)]
    )
    assert many == (2.0, 2.0, 2.0)
    assert speedup_of([record("trie")], [record("none", id="b")]) == (None, None, None)


def test_the_baseline_against_itself_is_exactly_one_and_drift_between_repeats_cancels() -> None:
    base = [record("none", 2.0 * drift, repeat=repeat) for repeat, drift in enumerate((1.0, 1.5, 3.0))]
    own = [record("trie", 1.0 * drift, repeat=repeat) for repeat, drift in enumerate((1.0, 1.5, 3.0))]
    assert speedup_of(base, base) == (1.0, 1.0, 1.0)
    assert speedup_of(own, base) == (2.0, 2.0, 2.0)


def test_the_interval_covers_outputs_of_other_lengths() -> None:
    """A library that ends one output early is as fast per token: its times and tokens are drawn together."""
    base = [record("none", 1.0, id=str(i)) for i in range(6)]
    own = [record("hf", 0.2 if i == 0 else 1.0, tokens=2 if i == 0 else 10, id=str(i)) for i in range(6)]
    assert speedup_of(own, base) == pytest.approx((1.0, 1.0, 1.0))


def test_identical_outputs_are_counted_and_drafts_are_per_step() -> None:
    records = [
        record("trie", steps=5, draft_tokens=20, accepted_tokens=5, draft_seconds=0.01),
        record("trie", id="b", steps=5, draft_tokens=0, identical=False),
    ]
    row = summarize(records)[0]
    assert row.num_identical == 1
    assert row.draft_tokens_per_step == 2.0
    assert row.acceptance_rate == 0.25
    assert row.draft_ms_per_step == pytest.approx(1.0)


@given(
    st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)), min_size=2, max_size=12),
    st.integers(1, 3),
)
def test_the_interval_lies_within_the_extremes_of_the_pairs(times: list[tuple[float, float]], repeats: int) -> None:
    own = [record("x", mine, id=str(i), repeat=r) for i, (mine, _) in enumerate(times) for r in range(repeats)]
    base = [record("none", theirs, id=str(i), repeat=r) for i, (_, theirs) in enumerate(times) for r in range(repeats)]
    speedup, low, high = speedup_of(own, base)
    ratios = [theirs / mine for mine, theirs in times]
    assert speedup is not None
    assert low is not None
    assert high is not None
    assert min(ratios) - 1e-9 <= low <= high <= max(ratios) + 1e-9
    assert min(ratios) - 1e-9 <= speedup <= max(ratios) + 1e-9
