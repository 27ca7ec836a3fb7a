"""Threads that run one compiled pass together: shared counters for work, and a wait at the end of each phase.

A pass is one call per thread. A phase is a number of units of work; each thread takes the next ones until none is left.
A phase ends when all units are completed, not when all threads have arrived: a thread that the system has suspended
delays only the units that it took, and a late thread skips the phases that are over. A waiting
thread spins for a moment and then yields its core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from llvmlite import ir
from numba import types

from pipeline.engine.torch.lean.compilation import generated, generator
from pipeline.engine.torch.lean.vectors import I32, I64, call

# Bytes between two counters, so that no two share a cache line.
COUNTER_BYTES = 64
_SPINS = 2000


@generated
def fetch_add(typing: Any, address: Any, amount: Any) -> Any:
    """Atomically add the amount to the int64 at the address; return its value before."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], I64.as_pointer())
        return builder.atomic_rmw("add", pointer, arguments[1], "seq_cst")

    return types.int64(types.int64, types.int64), generate


@generated
def read(typing: Any, address: Any) -> Any:
    """The int64 at the address, as other threads have left it."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], I64.as_pointer())
        return builder.load_atomic(pointer, "seq_cst", 8)

    return types.int64(types.int64), generate


@generated
def yield_core(typing: Any) -> Any:
    """Let another thread of this core run."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        call(builder, "sched_yield", I32, [])
        return context.get_dummy_value()

    return types.void(), generate


@generator
def shared(counter: int, count: int, chunk: int) -> Iterator[int]:
    """Yield this thread's units of a phase, out of 0 .. count - 1, `chunk` at a time. Ends when all threads have
    completed theirs. counter: address of the phase's counter; the count of completed units follows it."""
    completed = 0
    first = fetch_add(counter, chunk)
    while first < count:
        last = min(first + chunk, count)
        for unit in range(first, last):  # noqa: UP028 - numba knows no `yield from`
            yield unit
        completed += last - first
        first = fetch_add(counter, chunk)
    fetch_add(counter + COUNTER_BYTES, completed)
    spins = 0
    while read(counter + COUNTER_BYTES) < count:
        spins += 1
        if spins > _SPINS:
            yield_core()


class Crew:
    """The calling thread and `num_threads - 1` more, which sleep between passes and end with this object."""

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self._pool = ThreadPoolExecutor(num_threads - 1, "lean-pass") if num_threads > 1 else None

    def run(self, work: Callable[[int], None]) -> None:
        """work(thread number) on every thread that comes in time; returns when all of the work is done and no thread is
        at it. The work must not need Python."""
        others = [self._pool.submit(work, number) for number in range(1, self.num_threads) if self._pool is not None]
        work(0)
        for other in others:
            if not other.cancel():
                other.result()
