"""The most probable tokens after every row of a pass, for all sequences in one call and without a softmax.

A softmax over the vocabulary costs more than everything else between two passes, for a handful of numbers. The share of
a token is therefore relative to the sum over the maxima of blocks instead of the sum over all entries. It is exact
where a few tokens hold the mass, and too high by a bounded factor elsewhere. Draft sources calibrate their input, so
only the order must be exact, and it is.
"""

from __future__ import annotations

import torch

from pipeline.decoding.tree import FloatArray, IntArray
from pipeline.engine.torch.largest import top_k


class PassCandidates:
    """Candidates of all rows of a pass, computed when the first sequence needs them."""

    def __init__(self, logits: torch.Tensor, maxima: torch.Tensor) -> None:
        """logits: [rows, vocab]. maxima: their `largest.block_maxima`."""
        self._logits = logits
        self._maxima = maxima
        self._found: dict[int, tuple[IntArray, FloatArray]] = {}

    def top_k(self, k: int) -> tuple[IntArray, FloatArray]:
        """[rows, k] most probable tokens, best first, and the estimate of their probabilities, which falls along a row
        and sums up to 1 at most."""
        if k not in self._found:
            values, ids = top_k(self._logits, self._maxima, k)
            best = values[:, :1].float()
            shares = (values.float() - best).exp_()
            mass = (self._maxima.float() - best).exp_().sum(1, keepdim=True)
            shares /= torch.maximum(mass, shares.sum(1, keepdim=True))
            self._found[k] = ids.to(torch.int32).cpu().numpy(), shares.cpu().numpy()
        return self._found[k]
