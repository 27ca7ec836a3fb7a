"""`verify` passes a lossless engine, detects a lossy one, and distinguishes rounding from a fault."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.bench.measure import MeasureOptions
from pipeline.bench.verify.verify import (
    EPSILON,
    Comparison,
    compare,
    first_difference,
    is_lossless,
    near_tie_threshold,
    scores_after,
    verdict_sentence,
    verdict_table,
    verify_in_process,
)
from pipeline.config.schema import Dtype
from pipeline.decoding.request import SamplingParams
from pipeline.decoding.sampling import choose_token
from tests.fakes import TableEngine, make_request, table_logits
from tests.unit.bench.bench_fakes import PROMPTS, LyingEngine, contender_over


def run(engine: TableEngine, dtype: Dtype = "float32") -> list[Comparison]:
    reference, trie = contender_over(engine, "none"), contender_over(engine, "trie")
    options = MeasureOptions(max_new_tokens=24)
    reported: list[Comparison] = []
    comparisons, references = verify_in_process(
        engine, EPSILON[dtype], reference, [trie], PROMPTS, options, reported.append
    )
    assert reported == comparisons
    assert set(references) == {(prompt.prompt_id, how) for prompt in PROMPTS for how in ("greedy", "seeded")}
    assert not engine.held
    return comparisons


def test_a_lossless_engine_passes_greedy_and_seeded_alone_and_in_a_mixed_batch() -> None:
    comparisons = run(TableEngine())
    assert is_lossless(comparisons)
    assert {(c.decoding, c.where, c.strategy) for c in comparisons} == {
        (decoding, where, strategy)
        for decoding in ("greedy", "seeded")
        for where, strategy in (("alone", "trie"), ("batch", "trie"), ("batch", "none"))
    }
    assert all(c.num_tokens == 24 for c in comparisons)


def test_a_lossy_engine_is_caught_with_position_tokens_and_gap() -> None:
    wrong = [c for c in run(LyingEngine(error=100.0)) if c.verdict != "identical"]
    assert wrong
    assert not is_lossless(wrong)
    for comparison in wrong:
        assert comparison.position is not None
        assert comparison.expected != comparison.found
        assert comparison.gap is not None
        assert comparison.gap > 0
        assert comparison.strategy == "trie"


def test_in_16_bit_a_near_tie_is_forgiven_and_in_32_bit_it_is_not() -> None:
    rounded = run(LyingEngine(error=0.02, tie=0.01), "bfloat16")
    assert {c.verdict for c in rounded} == {"identical", "near_tie"}
    assert is_lossless(rounded)
    assert not is_lossless(run(LyingEngine(error=0.02, tie=0.01), "float32"))


def test_in_16_bit_a_fault_is_still_a_fault() -> None:
    assert not is_lossless(run(LyingEngine(error=100.0), "bfloat16"))


@pytest.mark.parametrize(
    ("found", "said"), [([5, 6], "the end instead of token 7"), ([5, 6, 7, 8], "token 8 instead of the end")]
)
def test_an_output_of_another_length_is_a_fault_in_any_number_of_bits(found: list[int], said: str) -> None:
    comparison = compare(
        lambda: (TableEngine(), EPSILON["bfloat16"]),
        make_request(),
        [5, 6, 7],
        found,
        prompt_id="p",
        strategy="trie",
        where="alone",
    )
    assert comparison.verdict == "different"
    assert (comparison.gap, comparison.threshold) == (None, None)
    position = min(3, len(found))
    assert verdict_sentence(comparison) == f"p, trie, greedy, alone: output {position} is {said}; a fault."


def test_the_table_counts_every_verdict_where_it_fell() -> None:
    comparisons = [
        Comparison(f"p{number}", "trie", "greedy", where, verdict, 10, 3, 1, 2, 0.25, 0.5)
        for number, (where, verdict) in enumerate(
            [("alone", "identical"), ("alone", "near_tie"), ("alone", "identical"), ("batch", "different")]
        )
    ]
    alone, batch = verdict_table(comparisons)
    assert [*alone][3:] == ["outputs", "tokens", "identical", "near-ties", "different"]
    assert [(*row.values(),) for row in (alone, batch)] == [
        ("trie", "greedy", "alone", "3", "30", "2", "1", "0"),
        ("trie", "greedy", "batch", "1", "10", "0", "0", "1"),
    ]
    ends = "output 3 is token 2 instead of token 1; their scores lie within 0.25 logits, rounding explains up to 0.5: "
    assert verdict_sentence(comparisons[1]).endswith(f"{ends}a near-tie.")
    assert verdict_sentence(comparisons[3]).endswith(f"{ends}a fault.")


@pytest.mark.parametrize(
    ("expected", "found", "difference"),
    [
        ([1, 2], [1, 2], None),
        ([1, 2], [1, 3], (1, 2, 3)),
        ([1, 2], [1], (1, 2, None)),
        ([1], [1, 2], (1, None, 2)),
        ([], [], None),
        ([1], [2], (0, 1, 2)),
    ],
)
def test_first_difference(expected: list[int], found: list[int], difference: tuple[int, ...] | None) -> None:
    assert first_difference(expected, found) == difference


@given(st.integers(0, 2**32), st.floats(0.1, 3.0))
def test_the_scores_looked_at_are_those_that_chose_the_token(seed: int, temperature: float) -> None:
    request = make_request((1, 2, 3), sampling=SamplingParams(temperature=temperature, seed=seed))
    context = np.asarray([1, 2, 3, 4, 5], np.int32)
    logits, scores = scores_after(TableEngine(), request, context)
    assert np.array_equal(logits, table_logits(context.tolist()))
    assert int(scores.argmax()) == choose_token(request, logits, context)


def test_long_contexts_are_scored_in_passes_that_fit_the_engine() -> None:
    engine = TableEngine(limits=dataclasses.replace(TableEngine().limits, max_num_tokens=4))
    logits, _ = scores_after(engine, make_request(), np.arange(1, 19, dtype=np.int32))
    assert np.array_equal(logits, table_logits([16, 17, 18]))
    assert not engine.held


def test_the_threshold_grows_with_the_logits_and_is_zero_in_32_bit() -> None:
    scores = np.asarray([20.0, -40.0], np.float32)
    for dtype, expected in (("float32", 0.0), ("bfloat16", 4 * 40 / 128), ("float16", 4 * 40 / 1024)):
        assert near_tie_threshold(EPSILON[dtype], scores) == pytest.approx(expected)
    assert near_tie_threshold(0.0, scores) == 0.0
