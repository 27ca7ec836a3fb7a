"""The search by blocks gives the same result as a search through whole rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.engine.torch.top_k import TorchLogits, block_maxima, summary_of, top_k


def summarized(logits: torch.Tensor, most: int = 0) -> TorchLogits:
    return TorchLogits(logits, summary_of(logits, most))


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
    assert summarized(logits).choices.tolist() == logits.argmax(dim=1).tolist()


@pytest.mark.parametrize("num_rows", [1, 3, 17])
def test_equal_entries_are_chosen_alike_whatever_rows_stand_beside(num_rows: int) -> None:
    row = torch.zeros(1, 256)
    row[0, [70, 130, 131]] = 1.0
    rows = torch.cat([row, torch.randn(num_rows - 1, 256)])

    assert summarized(rows).choices[0] == summarized(row).choices[0] == 70


@given(st.sampled_from([1, 40, 300, 1024]), st.integers(1, 4), st.integers(0, 1000))
def test_of_equal_entries_the_first_is_chosen_as_transformers_does(vocab_size: int, levels: int, seed: int) -> None:
    """Rounded to bfloat16 the two largest logits of a text are often equal."""
    logits = torch.randint(levels, (3, vocab_size), generator=torch.Generator().manual_seed(seed)).bfloat16()
    assert summarized(logits).choices.tolist() == [row.index(max(row)) for row in logits.tolist()]


def test_no_rows() -> None:
    logits = torch.empty(0, 40)

    assert summarized(logits).choices.shape == (0,)


def test_shares_are_those_of_a_softmax_where_few_tokens_hold_the_mass() -> None:
    logits = torch.full((3, 640), -20.0)
    logits[0, [5, 300, 630]] = torch.tensor([2.0, 1.0, 0.5])
    logits[1, 17] = 9.0
    logits[2, [0, 639]] = torch.tensor([-1.0, -1.0])
    ids, shares = summarized(logits, 3).top_k(slice(3), 3)
    exact = torch.softmax(logits, 1).numpy()
    assert ids[0].tolist() == [5, 300, 630]
    assert ids[1, 0] == 17
    assert set(ids[2, :2].tolist()) == {0, 639}
    np.testing.assert_allclose(shares, np.take_along_axis(exact, ids, 1), atol=1e-5)


def test_shares_of_flat_rows_are_bounded_and_in_order() -> None:
    logits = torch.from_numpy(np.random.default_rng(0).normal(size=(4, 1280)).astype(np.float32))
    candidates = summarized(logits, 8)
    ids, shares = candidates.top_k(slice(4), 8)
    assert ids.tolist() == logits.argsort(1, descending=True)[:, :8].tolist()
    exact = np.take_along_axis(torch.softmax(logits, 1).numpy(), ids, 1)
    assert (shares >= exact).all()
    assert (shares.sum(1) <= 1 + 1e-6).all()
    some_ids, some_shares = candidates.top_k(slice(1, 3), 8)
    assert some_ids.tolist() == ids[1:3].tolist()
    assert some_shares.tolist() == shares[1:3].tolist()


@pytest.mark.parametrize("k", [1, 8, 16, 20])
def test_entries_of_a_summary_are_those_found_later(k: int) -> None:
    logits = torch.randn(5, 1280, generator=torch.Generator().manual_seed(0))
    logits[2, [7, 90]] = 9.0
    (ids, shares), (expected_ids, expected_shares) = (
        summarized(logits, most).top_k(slice(1, 5), k) for most in (16, 0)
    )
    np.testing.assert_array_equal(np.sort(ids), np.sort(expected_ids))
    np.testing.assert_allclose(shares, expected_shares, atol=1e-6)


def test_equal_logits_of_one_block_share_what_there_is() -> None:
    logits = torch.full((1, 64), -30.0)
    logits[0, :4] = 1.0
    _, shares = summarized(logits, 4).top_k(slice(1), 4)
    np.testing.assert_allclose(shares, 0.25, atol=1e-6)
