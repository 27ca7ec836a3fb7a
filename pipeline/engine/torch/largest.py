"""The largest entries of logit rows. A vocabulary is long and torch's own search in it slow on the CPU, so rows are cut
into blocks: the k largest entries lie in the k blocks with the largest maxima."""

from __future__ import annotations

import torch

from pipeline.decoding.tree import FloatArray, IntArray

_LONGEST_BLOCK = 64


def block_maxima(logits: torch.Tensor) -> torch.Tensor:
    """[n, vocab] -> [n, blocks] maximum of each block; blocks are as long as divides the vocabulary."""
    vocab_size = logits.shape[1]
    length = max(length for length in range(1, min(_LONGEST_BLOCK, vocab_size) + 1) if vocab_size % length == 0)
    return logits.view(len(logits), vocab_size // length, length).amax(2)


def argmax(logits: torch.Tensor, maxima: torch.Tensor) -> torch.Tensor:
    """[n] index of the largest entry of each row of logits [n, vocab]. maxima: `block_maxima` of them."""
    return top_k(logits, maxima, 1)[1][:, 0]


def top_k(logits: torch.Tensor, maxima: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[n, k] the largest entries of each row of logits [n, vocab], largest first, and their indices."""
    num_rows, num_blocks = maxima.shape
    length = logits.shape[1] // num_blocks
    blocks = maxima.topk(min(k, num_blocks), dim=1).indices
    candidates = logits.view(num_rows, num_blocks, length).gather(1, blocks[:, :, None].expand(-1, -1, length))
    values, places = candidates.flatten(1).topk(k, dim=1)
    return values, blocks.gather(1, places // length) * length + places % length


class PassCandidates:
    """The most probable tokens after all rows of a pass, computed when the first sequence needs them.

    A softmax over the vocabulary costs more than everything else between two passes. A token's share is therefore
    relative to the sum over the maxima of blocks, not over all entries. It is exact where a few tokens hold the mass,
    and too high by a bounded factor elsewhere. Draft sources calibrate it, so only the order must be exact, and it is.
    """

    def __init__(self, logits: torch.Tensor, maxima: torch.Tensor) -> None:
        """logits: [rows, vocab]. maxima: their `block_maxima`."""
        self._logits = logits
        self._maxima = maxima
        self._found: dict[int, tuple[IntArray, FloatArray]] = {}

    def top_k(self, k: int) -> tuple[IntArray, FloatArray]:
        """[rows, k] most probable tokens, best first, and estimates of their probabilities, which fall along a row
        and add up to at most 1."""
        if k not in self._found:
            values, ids = top_k(self._logits, self._maxima, k)
            best = values[:, :1].float()
            shares = (values.float() - best).exp_()
            mass = (self._maxima.float() - best).exp_().sum(1, keepdim=True)
            shares /= torch.maximum(mass, shares.sum(1, keepdim=True))
            self._found[k] = ids.to(torch.int32).cpu().numpy(), shares.cpu().numpy()
        return self._found[k]
