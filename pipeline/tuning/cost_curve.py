"""Measures the cost curve: time of a verify pass by number of tokens, sequences and context length.

The planner needs the whole curve, because on a CPU no part of it is flat (see `critical_decoding_length`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.config.schema import Device
from pipeline.decoding.planning.cost import CostCurve, CostPoint
from pipeline.decoding.tree import IntArray, chain
from pipeline.engine.contract import Engine, EngineLimits, EngineSequence, VerifyItem


@dataclass(frozen=True, slots=True)
class CostGrid:
    """Sizes of the measured passes: all combinations within the engine's limits. max_pass_tokens: over all
    sequences."""

    tokens_per_sequence: Sequence[int] = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128)
    batch_sizes: Sequence[int] = (1, 2, 4, 8, 16, 32)
    context_lengths: Sequence[int] = (128, 1024)
    max_pass_tokens: int = 256
    num_repeats: int = 5


FINE = CostGrid()
# Sufficient for a planner; takes seconds for a small model.
COARSE = CostGrid((1, 2, 4, 8, 16, 24, 32, 64), (1, 4, 16), max_pass_tokens=128, num_repeats=3)
# For a GPU, whose curve may be flat up to more tokens than a CPU's.
WIDE = CostGrid(max_pass_tokens=2048)
# Least number of sizes per group, because a single one has no slope.
MIN_SIZES = 2
# A first pass that takes more than _DISTURBED times as long as its tokens one by one was disturbed. It is tried up to
# _SECOND_TRIES times.
_DISTURBED, _SECOND_TRIES = 1.5, 2


def grid_for(device: Device, *, fine: bool) -> CostGrid:
    """The grid for a device. fine: for `lookahead bench --cost-curve`; otherwise for a build."""
    if device == "cuda":
        return WIDE
    return FINE if fine else COARSE


def critical_decoding_length(points: Sequence[CostPoint]) -> int:
    """Maximum number of draft tokens for which a pass over one sequence takes at most a tenth longer than without
    drafts (arXiv 2312.12728, section 3). Uses the shortest measured context."""
    alone = [point for point in points if point.batch_size == 1]
    shortest = min(point.context_len for point in alone)
    most = max(point.num_tokens for point in alone if point.context_len == shortest)
    times = CostCurve(tuple(alone)).seconds_up_to(most, 1, shortest)
    return int(np.flatnonzero(times <= 1.1 * times[1])[-1]) - 1


def measure(
    engine: Engine,
    grid: CostGrid,
    *,
    max_seconds: float = math.inf,
    on_point: Callable[[CostPoint], None] = lambda point: None,
) -> list[CostPoint]:
    """Return the least times of passes with chains of random drafts, for all sizes within the engine's limits.

    Repeats of different sizes alternate, so that a slow moment of the machine does not affect one size alone. The least
    time of the repeats counts, because disturbances only add time. max_seconds: no pass starts later; a slow machine
    gets fewer repeats, then fewer sizes, then no long contexts. Two sizes of one sequence are always measured. A pass
    that takes much longer than passes of single tokens would is measured again in any case."""
    random = np.random.default_rng(0)
    points: list[CostPoint] = []
    groups = groups_that_fit(engine.limits, grid)
    deadline = time.monotonic() + max_seconds
    for number, (batch_size, context_len, sizes) in enumerate(groups):
        now = time.monotonic()
        if number and now >= deadline:
            break
        # The remaining groups share the remaining time.
        until = now + (deadline - now) / (len(groups) - number)
        prefill_until = until if number else math.inf
        times = _measure_batch(engine, batch_size, context_len, sizes, grid.num_repeats, random, until, prefill_until)
        for size, seconds in zip(sizes, times, strict=False):  # times of fewer sizes if time was short
            points.append(CostPoint(size * batch_size, batch_size, context_len, seconds))
            on_point(points[-1])
    return points


def groups_that_fit(limits: EngineLimits, grid: CostGrid) -> list[tuple[int, int, list[int]]]:
    """Batch size, context length and numbers of tokens per sequence of each group of a grid, within limits."""
    # An engine with short sequences is measured at a quarter of their length.
    fitting = [length for length in grid.context_lengths if sizes_that_fit(limits, grid, 1, length)]
    lengths = fitting or [limits.max_seq_len // 4]
    groups = [
        (batch_size, context_len, sizes_that_fit(limits, grid, batch_size, context_len))
        for batch_size in grid.batch_sizes
        if batch_size <= limits.max_batch_size
        for context_len in lengths
    ]
    return [group for group in groups if group[2]]


def sizes_that_fit(limits: EngineLimits, grid: CostGrid, batch_size: int, context_len: int) -> list[int]:
    """Possible numbers of tokens per sequence in a pass. A measurement must also fit into max_seq_len."""
    longest = min(limits.max_num_tokens, grid.max_pass_tokens)
    possible = [
        size
        for size in grid.tokens_per_sequence
        if size - 1 <= limits.max_draft_tokens and size * batch_size <= longest
    ]
    # Every pass, including the warm-up, appends one token.
    room = limits.max_seq_len - context_len - 1
    return [size for number, size in enumerate(possible, 1) if number * (grid.num_repeats + 1) + size <= room]


def _measure_batch(
    engine: Engine,
    batch_size: int,
    context_len: int,
    sizes: Sequence[int],
    num_repeats: int,
    random: np.random.Generator,
    until: float,
    prefill_until: float,
) -> list[float]:
    """Seconds for each size. If time is short, only for the first sizes, or none if the context takes too long. until,
    prefill_until: deadlines on the monotonic clock."""
    vocab_size = engine.limits.vocab_size

    def tokens(count: int) -> IntArray:
        return random.integers(0, vocab_size, count).astype(np.int32)

    def seconds_of_pass(size: int) -> float:
        items = [VerifyItem(sequence, chain(tokens(size - 1).tolist())) for sequence in sequences]
        started = time.perf_counter()
        results = engine.verify(items)
        # Reading the choices waits for the device.
        choices = [result.choices for result in results if result is not None]
        seconds = time.perf_counter() - started
        assert len(choices) == batch_size, "every sequence has one pending token, so each pass gives logits"
        for sequence in sequences:
            engine.commit(sequence, [], tokens(1).tolist())
        return seconds

    context = tokens(context_len)
    sequences: list[EngineSequence] = []
    times: list[float] = []
    # Second tries of each size. They count as repeats, because a sequence has room for num_repeats of each size.
    tries: list[int] = []
    try:
        for _ in range(batch_size):
            sequences.append(engine.open(context))  # all have one context, so only the first is computed
            if not _prefill(engine, sequences[-1], prefill_until):
                return []
        for size in sizes:
            if len(times) >= MIN_SIZES and time.monotonic() >= until:
                break
            times.append(seconds_of_pass(size))
            tries.append(0)
            # With such a time, which may be the only one of its size, the planner would never draft.
            while times[-1] > _DISTURBED * size / sizes[0] * times[0] and tries[-1] < min(_SECOND_TRIES, num_repeats):
                times[-1] = min(times[-1], seconds_of_pass(size))
                tries[-1] += 1
        for repeat in range(num_repeats):
            for index, size in enumerate(sizes[: len(times)]):
                # Sizes ascend, so the following passes would take even longer.
                if time.monotonic() + times[index] > until:
                    break
                if repeat >= tries[index]:
                    times[index] = min(times[index], seconds_of_pass(size))
    finally:
        for sequence in sequences:
            engine.release(sequence)
    return times


def _prefill(engine: Engine, sequence: EngineSequence, until: float) -> bool:
    """Compute all pending tokens and append one, so that exactly one is pending. False if the deadline passes."""
    while sequence.num_pending:
        if time.monotonic() >= until:
            return False
        engine.verify([VerifyItem(sequence, num_pending=min(sequence.num_pending, engine.limits.max_num_tokens))])
    engine.commit(sequence, [], [0])
    return True
