from __future__ import annotations

import numpy as np
import torch

from pipeline.engine.torch.largest import block_maxima
from pipeline.engine.torch.top_k import PassCandidates


def test_shares_are_those_of_a_softmax_where_few_tokens_hold_the_mass() -> None:
    logits = torch.full((3, 640), -20.0)
    logits[0, [5, 300, 630]] = torch.tensor([2.0, 1.0, 0.5])
    logits[1, 17] = 9.0
    logits[2, [0, 639]] = torch.tensor([-1.0, -1.0])
    ids, shares = PassCandidates(logits, block_maxima(logits)).top_k(3)
    exact = torch.softmax(logits, 1).numpy()
    assert ids[0].tolist() == [5, 300, 630]
    assert ids[1, 0] == 17
    assert set(ids[2, :2].tolist()) == {0, 639}
    np.testing.assert_allclose(shares, np.take_along_axis(exact, ids, 1), atol=1e-5)


def test_shares_of_flat_rows_are_bounded_and_in_order() -> None:
    logits = torch.from_numpy(np.random.default_rng(0).normal(size=(4, 1280)).astype(np.float32))
    candidates = PassCandidates(logits, block_maxima(logits))
    ids, shares = candidates.top_k(8)
    assert ids.tolist() == logits.argsort(1, descending=True)[:, :8].tolist()
    exact = np.take_along_axis(torch.softmax(logits, 1).numpy(), ids, 1)
    assert (shares >= exact).all()
    assert (shares.sum(1) <= 1 + 1e-6).all()
    assert candidates.top_k(8)[0] is ids


def test_equal_logits_of_one_block_share_what_there_is() -> None:
    logits = torch.full((1, 64), -30.0)
    logits[0, :4] = 1.0
    _, shares = PassCandidates(logits, block_maxima(logits)).top_k(4)
    np.testing.assert_allclose(shares, 0.25, atol=1e-6)
