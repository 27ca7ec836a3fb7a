"""The logits of a pass on a GPU. What every step needs of them is computed in the pass, and read in one copy."""

from __future__ import annotations

import numpy as np
import torch

from pipeline.decoding.tree import FloatArray, IntArray
from pipeline.engine.torch.largest import TorchLogits, block_maxima, first_largest, top_k

# Entries of a row that a pass finds.
_MOST = 16


def summary_of(logits: torch.Tensor) -> torch.Tensor:
    """[n, 2 + 2 * most] of each row: its greedy choice, the ids of its largest entries, their logits, and the sum of
    exponentials of the block maxima (see `TorchLogits`). Numbers other than ids are the bits of a float32. logits:
    [n, vocab]."""
    maxima = block_maxima(logits)
    values, ids = top_k(logits, maxima, min(_MOST, logits.shape[1]))
    mass = (maxima.float() - values[:, :1].float()).exp_().sum(1, keepdim=True)
    choices = first_largest(logits, maxima)[:, None]
    return torch.cat([choices.int(), ids.int(), values.float().view(torch.int32), mass.view(torch.int32)], 1)


class GpuLogits:
    """Implements `PassLogits`, as `TorchLogits` does."""

    def __init__(self, logits: torch.Tensor, summary: torch.Tensor) -> None:
        """Waits for the pass. logits: [n, vocab]. summary: result of `summary_of`."""
        self._logits = logits
        self._summary: IntArray = summary.cpu().numpy()
        self.choices: IntArray = self._summary[:, 0]

    def rows(self, part: slice) -> FloatArray:
        return self._logits[part].float().cpu().numpy()

    def top_k(self, part: slice, k: int) -> tuple[IntArray, FloatArray]:
        most = self._summary.shape[1] // 2 - 1
        if k > most:
            return TorchLogits(self._logits).top_k(part, k)
        ids = self._summary[part, 1 : 1 + k]
        values = self._summary[part, 1 + most : 1 + most + k].view(np.float32)
        mass = self._summary[part, -1:].view(np.float32)
        shares = np.exp(values - values[:, :1])
        return np.ascontiguousarray(ids), shares / np.maximum(mass, shares.sum(1, keepdims=True))
