"""The search by blocks finds what the search through whole rows finds."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.engine.torch.largest import argmax, block_maxima, top_k


@given(
    st.integers(1, 5),
    st.sampled_from([1, 7, 40, 64, 97, 128, 1024, 50257 // 29]),
    st.integers(1, 12),
    st.integers(0, 1000),
)
def test_the_largest_entries_of_every_row(num_rows: int, vocab_size: int, k: int, seed: int) -> None:
    logits = torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed))
    k = min(k, vocab_size)
    maxima = block_maxima(logits)

    values, indices = top_k(logits, maxima, k)

    expected = logits.topk(k, dim=1)
    assert torch.equal(values, expected.values)
    assert torch.equal(logits.gather(1, indices), values)
    assert all(len(set(row)) == k for row in indices.tolist())
    assert torch.equal(argmax(logits, maxima), logits.argmax(dim=1))


@pytest.mark.parametrize("num_rows", [1, 3, 17])
def test_equal_entries_are_chosen_alike_whatever_rows_stand_beside(num_rows: int) -> None:
    row = torch.zeros(1, 256)
    row[0, [70, 130, 131]] = 1.0
    rows = torch.cat([row, torch.randn(num_rows - 1, 256)])

    assert argmax(rows, block_maxima(rows))[0] == argmax(row, block_maxima(row))[0]


def test_no_rows() -> None:
    logits = torch.empty(0, 40)

    assert argmax(logits, block_maxima(logits)).shape == (0,)
