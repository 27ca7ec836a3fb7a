"""Measures the time of a pass of the lean engine, and of its matrices alone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.decoding.tree import chain
from pipeline.engine.contract import VerifyItem
from pipeline.engine.torch.lean.engine import LeanEngine
from pipeline.errors import UserError


@dataclass(frozen=True, slots=True)
class PassTime:
    """Median seconds of a pass over one sequence with num_tokens tokens and all their logits, and of its matrices
    alone."""

    num_tokens: int
    whole_s: float
    matrices_s: float

    @property
    def ratio(self) -> float:
        return self.whole_s / self.matrices_s


def pass_times(engine: LeanEngine, sizes: Sequence[int], context_len: int, num_repeats: int) -> list[PassTime]:
    """Measure passes of these numbers of tokens after a context. Passes and matrices alternate, so that a slow moment
    of the machine affects both. Raises UserError if they exceed max_seq_len."""
    random = np.random.default_rng(0)
    vocab_size, max_seq_len = engine.limits.vocab_size, engine.limits.max_seq_len
    # Each pass appends a token.
    needed = context_len + (num_repeats + 1) * len(sizes) + max(sizes)
    if needed > max_seq_len:
        raise UserError(
            f"The context and the tokens of all passes are {needed} tokens; a sequence holds engine.max_seq_len = "
            f"{max_seq_len}. Give a shorter --context or fewer --repeats, or raise engine.max_seq_len."
        )
    sequence = engine.open(random.integers(0, vocab_size, context_len).astype(np.int32))
    try:
        while sequence.num_pending > 1:
            count = min(sequence.num_pending - 1, engine.limits.max_num_tokens)
            engine.verify([VerifyItem(sequence, num_pending=count)])
        seconds = np.zeros((num_repeats + 1, len(sizes), 2))
        # Nothing is committed, but the first pass computes the pending token.
        engine.verify([VerifyItem(sequence)])
        for repeat in range(num_repeats + 1):
            for index, size in enumerate(sizes):
                engine.commit(sequence, [], [int(random.integers(vocab_size))])
                tree = chain(random.integers(0, vocab_size, size - 1).tolist())
                started = time.perf_counter()
                engine.verify([VerifyItem(sequence, tree)])
                between = time.perf_counter()
                engine.multiply(size)
                seconds[repeat, index] = between - started, time.perf_counter() - between
    finally:
        engine.release(sequence)
    whole, matrices = np.median(seconds[1:], axis=0).T
    return [PassTime(*row) for row in zip(sizes, whole.tolist(), matrices.tolist(), strict=True)]
