"""The memory of a trie."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.decoding.trie import Trie, arrays


def test_row_0_holds_zeros_in_memory_that_was_used_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Links to row 0 mean that there is no node."""

    def used(size: int, dtype: np.dtype) -> np.ndarray:
        return np.frombuffer(bytes([7] * 32 * size), dtype, size).copy()

    monkeypatch.setattr(arrays.np, "empty", used)
    row_0 = arrays.new_arrays(40, 3).nodes[0]
    monkeypatch.undo()
    assert set(row_0.tolist()) == {0}
    assert not Trie(3).count(np.asarray([1], np.int32))
