"""Finds the largest entries of rows of logits. torch's own top-k over a vocabulary is slow on the CPU, so rows are
split into blocks: the k largest entries lie in the k blocks with the largest maxima."""

from __future__ import annotations

import torch

from pipeline.decoding.tree import FloatArray, IntArray

_LONGEST_BLOCK = 64


def block_maxima(logits: torch.Tensor) -> torch.Tensor:
    """[n, vocab] -> [n, blocks] maximum of each block. The block length divides the vocabulary size."""
    vocab_size = logits.shape[1]
    length = max(length for length in range(1, min(_LONGEST_BLOCK, vocab_size) + 1) if vocab_size % length == 0)
    return logits.view(len(logits), vocab_size // length, length).amax(2)


def top_k(logits: torch.Tensor, maxima: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[n, k] the largest entries of each row of logits [n, vocab], largest first, and their indices."""
    num_rows, num_blocks = maxima.shape
    length = logits.shape[1] // num_blocks
    blocks = maxima.topk(min(k, num_blocks), dim=1).indices
    candidates = logits.view(num_rows, num_blocks, length).gather(1, blocks[:, :, None].expand(-1, -1, length))
    values, positions = candidates.flatten(1).topk(k, dim=1)
    return values, blocks.gather(1, positions // length) * length + positions % length


def argmax(logits: torch.Tensor, maxima: torch.Tensor) -> torch.Tensor:
    """[n] index of the largest entry of each row, of equal ones the first, as transformers chooses."""
    length = logits.shape[1] // maxima.shape[1]
    block = maxima.argmax(1, keepdim=True)
    entries = logits.view(*maxima.shape, length).gather(1, block[:, :, None].expand(-1, -1, length))
    return block[:, 0] * length + entries[:, 0].argmax(1)


def summary_of(logits: torch.Tensor, most: int) -> torch.Tensor:
    """[n, 2 + 2 * most] of each row of logits [n, vocab]: its greedy choice, the ids of its largest entries, their
    exponentials relative to the largest one, and the sum of those of the block maxima. Numbers other than ids are the
    bits of a float32."""
    maxima = block_maxima(logits)
    values, ids = top_k(logits, maxima, most)
    best = maxima.amax(1, keepdim=True).float()
    shares = (values.float() - best).exp_()
    mass = (maxima.float() - best).exp_().sum(1, keepdim=True)
    choices = argmax(logits, maxima)[:, None]
    return torch.cat([choices.int(), ids.int(), shares.view(torch.int32), mass.view(torch.int32)], 1)


class TorchLogits:
    """Implements `PassLogits` for logits [rows, vocab]. What every step needs of them is in their summary, which is
    read in one copy.

    A softmax over the vocabulary takes longer than all other work between two passes. So a token's probability is
    estimated relative to the sum over the blocks' maxima, not over all entries. The estimate is exact if a few tokens
    have all the mass, and otherwise too high by a bounded factor. Draft sources calibrate it. The order is exact, and
    probabilities decrease along a row and sum to at most 1.
    """

    def __init__(self, logits: torch.Tensor, summary: torch.Tensor) -> None:
        """Waits for the pass. summary: result of `summary_of`."""
        self._logits = logits
        self._summary = summary.cpu()
        self.choices: IntArray = self._summary[:, 0].contiguous().numpy()

    def rows(self, part: slice) -> FloatArray:
        return self._logits[part].float().cpu().numpy()

    def top_k(self, part: slice, k: int) -> tuple[IntArray, FloatArray]:
        most = self._summary.shape[1] // 2 - 1
        if k > most:
            logits = self._logits[part]
            return TorchLogits(logits, summary_of(logits, k)).top_k(slice(None), k)
        found = self._summary[part]
        ids, shares, mass = found[:, 1 : 1 + k], found[:, 1 + most : 1 + most + k].view(torch.float32), found[:, -1:]
        total = torch.maximum(mass.view(torch.float32), shares.sum(1, keepdim=True))
        return ids.contiguous().numpy(), (shares / total).numpy()
