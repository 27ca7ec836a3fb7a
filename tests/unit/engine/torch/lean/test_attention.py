"""Parts of attention: tasks and memory. Its results are compared in `test_lean_engine` and `test_same_bits`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.decoding.tree import tree_from_lists
from pipeline.engine.contract import VerifyItem
from pipeline.engine.torch.lean.attention_tasks import max_task_rows, task_rows
from pipeline.engine.torch.lean.compilation import kernel
from pipeline.engine.torch.lean.engine import LeanEngine
from pipeline.engine.torch.lean.plan import Kind
from pipeline.engine.torch.lean.rows import mask_end
from pipeline.engine.torch.lean.tables import ALIGNMENT
from tests.unit.engine.torch.lean.models import lean_engine, tiny_model


@kernel
def hidden(row: np.ndarray, first: int, count: int) -> None:
    mask_end(row.ctypes.data + 4 * first, (len(row) - first) // 16, count)


@given(st.integers(1, 600), st.integers(1, 40), st.integers(1, 16), st.integers(1, 16))
def test_tasks_are_equally_many_for_each_thread_or_many(rows: int, group: int, heads: int, threads: int) -> None:
    size = task_rows(rows, group, heads, threads)
    assert 1 <= size <= max_task_rows(group)
    parts = -(-rows // max_task_rows(group))
    more = -(-rows // size)
    assert more >= parts
    if more > parts:  # only where the fewest possible tasks leave a thread idle
        assert parts * heads % threads
        assert parts * heads < 4 * threads


def test_eight_rows_of_three_key_heads_are_divided_for_two_threads() -> None:
    assert task_rows(8, 3, 3, 2) == 4
    assert task_rows(32, 3, 3, 2) == 8
    assert task_rows(1, 3, 3, 2) == 1


@pytest.mark.parametrize("count", [0, 1, 15, 16])
def test_the_end_of_a_row_is_hidden(count: int) -> None:
    row = np.arange(64, dtype=np.float32)
    hidden(row, 16, count)
    expected = np.arange(64, dtype=np.float32)
    expected[16 + count :] = -np.inf
    np.testing.assert_array_equal(row, expected)


def rows_of(engine: LeanEngine, prompt_len: int = 19) -> list[bytes]:
    """Logits of a tree after a prompt, as bytes."""
    engine.forget_cached()
    sequence = engine.open(np.arange(1, prompt_len + 1))
    (result,) = engine.verify([VerifyItem(sequence, tree_from_lists([3, 4, 5], [-1, -1, 1]))])
    engine.release(sequence)
    assert result is not None
    return [result.row(node).tobytes() for node in range(4)]


@pytest.mark.parametrize("kind", ["float32", "int8"])
@pytest.mark.parametrize("variant", ["llama", "mistral", "qwen2"])
@pytest.mark.parametrize("prompt_len", [19, 20])  # int16 keys and values are in pairs
def test_places_that_nobody_sees_may_hold_anything(prompt_len: int, variant: str, kind: Kind, tmp_path: Path) -> None:
    engine = lean_engine(tiny_model(variant), kind, tmp_path, 1)
    expected = rows_of(engine, prompt_len)
    for array in (engine._cache.keys, engine._cache.values, engine._cache.scales):
        array[:] = np.nan if array.dtype == np.float32 else -1 << 15
    assert rows_of(engine, prompt_len) == expected


def test_arrays_of_vectors_begin_at_cache_lines(tmp_path: Path) -> None:
    engine = lean_engine(tiny_model("llama"), "float32", tmp_path, 2)
    (logits,) = engine.verify([VerifyItem(engine.open(np.asarray([1, 2, 3])))])
    arrays = [engine._cache.keys, engine._cache.values, engine._scratch[1], engine._zeros, engine._counters]
    arrays += [*engine._kept.values(), logits.logits.logits]  # type: ignore[union-attr]
    assert [array.ctypes.data % ALIGNMENT for array in arrays] == [0] * len(arrays)
