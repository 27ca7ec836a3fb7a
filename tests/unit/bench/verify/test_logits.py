"""Bits of logits: recorded by position for accepted tokens only, equal for an engine with equal rows, and any other bit
is found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from pipeline.bench.data.workload import NamedPrompt, Prompt
from pipeline.bench.measure import MeasureOptions
from pipeline.bench.verify.logits import HashedSequence, RecordingEngine, first_other_bits, rows_by_prompt
from pipeline.bench.verify.verify import Comparison, is_lossless, verdict_sentence, verdict_table, verify_in_process
from pipeline.decoding.tree import chain
from pipeline.engine.contract import Engine, VerifyItem
from tests.fakes import TableEngine, TableLogits
from tests.unit.bench.bench_fakes import contender_over
from tests.unit.engine.torch.lean import models

PROMPTS = [NamedPrompt(f"p{i}", np.asarray([i + 1, i + 2, 3], np.int32), Prompt(("text",))) for i in range(3)]


class SignOfZero(TableEngine):
    """Rows of draft nodes with equal numbers but other bits: -0.0 where the root's row has 0.0."""

    def verify(self, items: Sequence[VerifyItem]) -> list[TableLogits | None]:
        results = super().verify(items)
        for logits in results:
            for index, row in enumerate([] if logits is None else logits.rows):
                row[np.argmin(row)] = -0.0 if index else 0.0
        return results


def compared(engine: Engine) -> list[Comparison]:
    recorder = RecordingEngine(engine)
    comparisons, _ = verify_in_process(
        recorder,
        0.0,
        contender_over(recorder, "none"),
        [contender_over(recorder, "trie")],
        PROMPTS,
        MeasureOptions(max_new_tokens=24),
        recorder=recorder,
    )
    return [comparison for comparison in comparisons if comparison.decoding.endswith("logits")]


def test_every_row_that_chose_a_token_is_compared_alone_and_in_the_batch() -> None:
    comparisons = compared(TableEngine())
    assert is_lossless(comparisons)
    assert {(c.strategy, c.decoding, c.where) for c in comparisons} == {
        (strategy, f"{decoding} logits", where)
        for decoding in ("greedy", "seeded")
        for strategy, where in (("trie", "alone"), ("all", "batch"))
    }
    for comparison in comparisons:
        # The batch holds each prompt under both strategies.
        assert comparison.num_tokens == (24 if comparison.where == "alone" else 48)


def test_a_single_other_bit_is_a_fault_that_is_named() -> None:
    wrong = [c for c in compared(SignOfZero()) if c.verdict == "different"]
    assert wrong
    for comparison in wrong:
        assert comparison.position is not None
        assert 0 <= comparison.position < 24
        assert verdict_sentence(comparison).endswith(
            f"the logits of output {comparison.position} have other bits; a fault."
        )
    _, rows = verdict_table(wrong)
    assert all(row[-1] != "0" for row in rows)


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8"])
def test_the_lean_pass_gives_the_same_bits_in_the_strategies_own_trees(kind: str, tmp_path: Path) -> None:
    engine = models.lean_engine(models.tiny_model("llama"), kind, tmp_path, 2)  # type: ignore[arg-type]
    comparisons = compared(engine)
    assert is_lossless(comparisons)
    assert sum(comparison.num_tokens for comparison in comparisons) == 2 * 3 * (24 + 48)


def test_rejected_nodes_are_not_recorded() -> None:
    recorder = RecordingEngine(TableEngine())
    sequence = recorder.open(np.asarray([1, 2, 3], np.int32))
    recorder.verify([VerifyItem(sequence, chain([4, 5]))])
    recorder.commit(sequence, [0], [4, 9])
    (recorded,) = recorder.take()
    assert sorted(recorded.rows) == [3, 4]
    recorder.release(sequence)
    assert recorder.take() == []


def test_first_other_bits_counts_from_the_output() -> None:
    assert first_other_bits({3: b"a", 4: b"b"}, {3: b"a", 4: b"b", 5: b"c"}, 3) == (2, None)
    assert first_other_bits({3: b"a", 4: b"b"}, {3: b"a", 4: b"x"}, 3) == (2, 1)


def test_a_sequence_belongs_to_the_longest_prompt_that_it_begins_with() -> None:
    engine = TableEngine()
    sequences = [
        HashedSequence(engine.open(np.asarray(tokens, np.int32)), tokens, {place: b"row"})
        for place, tokens in enumerate([[1, 2], [1, 2, 3], [1, 2, 9]])
    ]
    assert rows_by_prompt(sequences, {"short": [1, 2], "long": [1, 2, 3]}) == {
        "short": [{0: b"row"}, {2: b"row"}],
        "long": [{1: b"row"}],
    }


def test_prompts_with_the_same_tokens_share_their_sequences() -> None:
    sequence = HashedSequence(TableEngine().open(np.asarray([1, 2], np.int32)), [1, 2], {0: b"row"})
    found = rows_by_prompt([sequence], {"one": [1, 2], "again": [1, 2], "short": [1]})
    assert found == {"one": [{0: b"row"}], "again": [{0: b"row"}], "short": []}
