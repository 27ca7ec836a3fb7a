"""Measuring the cost curve: time of a verify pass by tokens in the pass, sequences and context length.

The trie paper calls the number of draft tokens up to which a pass costs hardly more than for one token the critical
decoding length (arXiv 2312.12728, section 3); the planner needs the whole curve, as on a CPU there is no flat part.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from pipeline.decoding.cost import CostPoint
from pipeline.decoding.tree import IntArray, chain
from pipeline.engine.contract import Engine, EngineLimits, VerifyItem
from pipeline.engine.contract import Sequence as EngineSequence

TOKENS_PER_SEQUENCE = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128)
BATCH_SIZES = (1, 2, 4, 8, 16, 32)
CONTEXT_LENGTHS = (128, 1024)
MAX_PASS_TOKENS = 256
NUM_REPEATS = 5


def measure(
    engine: Engine,
    *,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    context_lengths: Sequence[int] = CONTEXT_LENGTHS,
    num_repeats: int = NUM_REPEATS,
    seed: int = 0,
    on_point: Callable[[CostPoint], None] = lambda point: None,
) -> list[CostPoint]:
    """Median times of passes with chains of random drafts, for all sizes that fit the engine's limits.

    Repeats of the different sizes alternate, so that a slow moment of the machine does not fall on one size alone."""
    limits = engine.limits
    random = np.random.default_rng(seed)
    points: list[CostPoint] = []
    for batch_size in (size for size in batch_sizes if size <= limits.max_batch_size):
        for context_len in context_lengths:
            sizes = sizes_that_fit(limits, batch_size, context_len, num_repeats)
            if not sizes:
                continue
            times = _measure_batch(engine, batch_size, context_len, sizes, num_repeats, random)
            for size, seconds in zip(sizes, times, strict=True):
                points.append(CostPoint(size * batch_size, batch_size, context_len, seconds))
                on_point(points[-1])
    return points


def sizes_that_fit(limits: EngineLimits, batch_size: int, context_len: int, num_repeats: int) -> list[int]:
    """Tokens per sequence that a pass may have; none if the sequences outgrow the engine while they are measured."""
    possible = [
        size
        for size in TOKENS_PER_SEQUENCE
        if size - 1 <= limits.max_draft_tokens and size * batch_size <= min(limits.max_num_tokens, MAX_PASS_TOKENS)
    ]
    # Every pass, the one that warms up included, leaves one token behind.
    grown = context_len + 1 + len(possible) * (num_repeats + 1)
    return [size for size in possible if grown + size <= limits.max_seq_len]


def _measure_batch(
    engine: Engine,
    batch_size: int,
    context_len: int,
    sizes: Sequence[int],
    num_repeats: int,
    random: np.random.Generator,
) -> list[float]:
    vocab_size = engine.limits.vocab_size

    def tokens(count: int) -> IntArray:
        return random.integers(0, vocab_size, count).astype(np.int32)

    sequences = [engine.open(tokens(context_len)) for _ in range(batch_size)]
    times = np.zeros((len(sizes), num_repeats))
    try:
        for sequence in sequences:
            _prefill(engine, sequence)
        for repeat in range(-1, num_repeats):
            for place, size in enumerate(sizes):
                items = [VerifyItem(sequence, chain(tokens(size - 1).tolist())) for sequence in sequences]
                started = time.perf_counter()
                results = engine.verify(items)
                # Reading the choices waits for the device.
                choices = [result.choices for result in results if result is not None]
                seconds = time.perf_counter() - started
                assert len(choices) == batch_size, "every sequence has one pending token, so each pass gives logits"
                for sequence in sequences:
                    engine.commit(sequence, [], tokens(1).tolist())
                if repeat >= 0:
                    times[place, repeat] = seconds
    finally:
        for sequence in sequences:
            engine.release(sequence)
    medians: list[float] = np.median(times, axis=1).tolist()
    return medians


def _prefill(engine: Engine, sequence: EngineSequence) -> None:
    """Compute all pending tokens and append one more, so that exactly one is pending."""
    while sequence.pending:
        engine.verify([VerifyItem(sequence, num_pending=min(len(sequence.pending), engine.limits.max_num_tokens))])
    engine.commit(sequence, [], [0])
