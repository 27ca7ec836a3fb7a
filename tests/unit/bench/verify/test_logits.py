"""Bits of logits: recorded by position for accepted tokens only, equal for an engine with equal rows, and any other bit
is found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from pipeline.bench.measure import MeasureOptions
from pipeline.bench.verify.verify import (
    Comparison,
    RowHashes,
    first_other_bits,
    is_lossless,
    verdict_sentence,
    verdict_table,
    verify_in_process,
)
from pipeline.engine.contract import Engine, VerifyItem
from pipeline.engine.submission import Submission
from tests.fakes import HostileSource, TableEngine, TableLogits, make_request, make_scheduler
from tests.unit.bench.bench_fakes import PROMPTS, contender_over
from tests.unit.engine.torch.lean import models


class SignOfZero(TableEngine):
    """Rows of draft nodes with equal numbers but other bits: -0.0 where the root's row has 0.0."""

    def verify(self, items: Sequence[VerifyItem]) -> list[TableLogits | None]:
        results = super().verify(items)
        for logits in results:
            for index, row in enumerate([] if logits is None else logits.rows):
                row[np.argmin(row)] = -0.0 if index else 0.0
        return results


def compared(engine: Engine) -> list[Comparison]:
    comparisons, _ = verify_in_process(
        engine,
        0.0,
        contender_over(engine, "none"),
        [contender_over(engine, "trie")],
        PROMPTS,
        MeasureOptions(max_new_tokens=24),
        logits=True,
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
    assert all(row["different"] != "0" for row in verdict_table(wrong))


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8"])
def test_the_lean_pass_gives_the_same_bits_in_the_strategies_own_trees(kind: str, tmp_path: Path) -> None:
    engine = models.lean_engine(models.tiny_model("llama"), kind, tmp_path, 2)  # type: ignore[arg-type]
    comparisons = compared(engine)
    assert is_lossless(comparisons)
    assert sum(comparison.num_tokens for comparison in comparisons) == 2 * 3 * (24 + 48)


def test_first_other_bits_counts_from_the_output() -> None:
    assert first_other_bits({3: b"a", 4: b"b"}, {3: b"a", 4: b"b", 5: b"c"}, 3) == (2, None)
    assert first_other_bits({3: b"a", 4: b"b"}, {3: b"a", 4: b"x"}, 3) == (2, 1)


def test_only_the_rows_that_chose_tokens_are_hashed() -> None:
    source, rows = HostileSource(broken=0.0), RowHashes()
    submission = Submission(make_request([1, 2, 3], 24), "trie", on_row=rows.add)
    make_scheduler(source=source, budget=(8, 4)).run([submission])
    assert sorted(rows) == list(range(3, 27))
