"""Times of whole passes and of their matrices alone; measuring changes nothing that a later pass computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.engine.contract import VerifyItem
from pipeline.engine.torch.lean.engine import LeanEngine
from pipeline.engine.torch.lean.pass_times import PassTime, pass_times
from pipeline.errors import UserError
from tests.unit.engine.torch.lean.models import lean_engine, tiny_model


def logits_after(engine: LeanEngine, tokens: list[int]) -> np.ndarray:
    engine.forget_cached()
    sequence = engine.open(np.asarray(tokens))
    (result,) = engine.verify([VerifyItem(sequence)])
    engine.release(sequence)
    assert result is not None
    return result.row(0).copy()


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8"])
def test_each_size_has_both_times_and_passes_compute_what_they_did(kind: str, tmp_path: Path) -> None:
    engine = lean_engine(tiny_model("biases"), kind, tmp_path, 2)  # type: ignore[arg-type]
    before = logits_after(engine, [3, 1, 4])
    times = pass_times(engine, [1, 8], context_len=20, num_repeats=2)
    assert [entry.num_tokens for entry in times] == [1, 8]
    for entry in times:
        assert entry.whole_s > 0
        assert entry.matrices_s > 0
    engine.multiply(8)
    assert logits_after(engine, [3, 1, 4]).tobytes() == before.tobytes()


def test_a_context_that_leaves_too_few_places_is_refused(tmp_path: Path) -> None:
    engine = lean_engine(tiny_model("llama"), "float32", tmp_path, 1)
    with pytest.raises(UserError, match=r"are 206 tokens; a sequence holds engine.max_seq_len = 192.*--context"):
        pass_times(engine, [1, 8], context_len=190, num_repeats=3)
    assert len(pass_times(engine, [1, 8], context_len=176, num_repeats=3)) == 2


def test_the_ratio_is_whole_over_matrices() -> None:
    assert PassTime(1, 0.03, 0.02).ratio == pytest.approx(1.5)
