"""Threads that run one compiled pass together, with shared work counters and a barrier at the end of each phase.

A pass is one call per thread. A phase is a number of units of work; each thread takes the next ones until none is left.
A phase ends when all units are completed, even if some threads have not arrived. So a thread that the system suspends
delays only the units that it took, and skips phases that have ended. A waiting thread spins for a moment and then
yields its core.

A pass ends when every thread that entered it has left it. A thread that comes later finds the pass closed, or the next
one open, and returns without access to any data. Threads enter and leave in compiled code, so the calling thread does
not wait until the others have reacquired Python's lock, which takes 0.2 ms.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from threading import Thread

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types

from pipeline.engine.torch.lean.compilation import emitted, generator, kernel
from pipeline.engine.torch.lean.vectors import I32, I64, call

# Distance of two counters in bytes, so that no two share a cache line.
COUNTER_BYTES = 64
# Distance of the counters of two phases, each of which has one for units taken and one for units completed.
PHASE_BYTES = 2 * COUNTER_BYTES
_ENTERED, _LEFT = COUNTER_BYTES, 2 * COUNTER_BYTES
_SPINS = 2000
_FROM_BACK = 1 << 32
# Address of the state of the team, and number of the pass.
PassHandle = tuple[int, int]
Work = Callable[[int, PassHandle], None]


@emitted(types.int64, types.int64, types.int64)
def fetch_add(builder: ir.IRBuilder, address: ir.Value, amount: ir.Value) -> ir.Value:
    """Atomically add the amount to the int64 at the address. Returns the old value."""
    return builder.atomic_rmw("add", builder.inttoptr(address, I64.as_pointer()), amount, "seq_cst")


@emitted(types.int64, types.int64)
def read(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """Atomically read the int64 at the address."""
    return builder.load_atomic(builder.inttoptr(address, I64.as_pointer()), "seq_cst", 8)


@emitted(types.void)
def yield_core(builder: ir.IRBuilder) -> None:
    """Let another thread run on this core."""
    call(builder, "sched_yield", I32, [])


@generator
def work_units(thread: int, counter: int, count: int, chunk: int) -> Iterator[int]:
    """Yield this thread's units of a phase, out of 0 .. count - 1. A thread takes a chunk of units at a time: threads
    of even numbers the first one left, others the last one. So two threads get nearly the same units in each phase, and
    find the data in their own CPU cache. Ends when all units are completed. counter: address of the phase's counter,
    which counts chunks taken from the front and, in units of `_FROM_BACK`, from the back; the number of completed units
    follows it."""
    num_chunks = (count + chunk - 1) // chunk
    is_odd = thread % 2
    one = _FROM_BACK if is_odd else 1
    completed = 0
    taken = fetch_add(counter, one)
    while taken % _FROM_BACK + taken // _FROM_BACK < num_chunks:
        number = num_chunks - 1 - taken // _FROM_BACK if is_odd else taken % _FROM_BACK
        last = min((number + 1) * chunk, count)
        for unit in range(number * chunk, last):  # noqa: UP028 - numba does not support `yield from`
            yield unit
        completed += last - number * chunk
        taken = fetch_add(counter, one)
    fetch_add(counter + COUNTER_BYTES, completed)
    spins = 0
    while read(counter + COUNTER_BYTES) < count:
        spins += 1
        if spins > _SPINS:
            yield_core()


@kernel
def enter_pass(handle: PassHandle) -> bool:
    """Enter a pass. Returns whether it is still open; if so, the thread must call `leave_pass` at the end."""
    address, number = handle
    fetch_add(address + _ENTERED, 1)
    is_open: bool = read(address) == number
    if not is_open:
        fetch_add(address + _LEFT, 1)
    return is_open


@kernel
def leave_pass(thread: int, handle: PassHandle) -> None:
    """Leave a pass. Thread 0 closes the pass and waits until every thread that entered it has left."""
    address, number = handle
    fetch_add(address + _LEFT, 1)
    if thread > 0:
        return
    fetch_add(address, -number)
    spins = 0
    while read(address + _LEFT) < read(address + _ENTERED):
        spins += 1
        if spins > _SPINS:
            yield_core()


class ThreadTeam:
    """The calling thread and `num_threads - 1` more, which sleep between passes and end with this object."""

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        # Number of the open pass or 0, threads that ever entered one, threads that left it.
        self._state = np.zeros(3 * COUNTER_BYTES // 8, np.int64)
        self._number = 0
        self._queues: list[SimpleQueue[tuple[Work, PassHandle] | None]] = [SimpleQueue() for _ in range(1, num_threads)]
        for number, queue in enumerate(self._queues, 1):
            Thread(target=_serve, args=(number, queue, self._state), name=f"lean-pass-{number}", daemon=True).start()
        weakref.finalize(self, _end, self._queues)

    def run(self, work: Work) -> None:
        """Call work(thread number, handle) on every thread that arrives before the work is done. Returns when the work
        is done and every thread has left the pass. work: calls one kernel, from `enter_pass` to `leave_pass`."""
        self._number += 1
        self._state[0] = self._number
        handle = self._state.ctypes.data, self._number
        try:
            for queue in self._queues:
                queue.put((work, handle))
            work(0, handle)
        except BaseException:  # Ctrl-C before the pass was entered: the other threads still write to its arrays
            if enter_pass(handle):
                leave_pass(0, handle)
            raise


def _serve(number: int, queue: SimpleQueue[tuple[Work, PassHandle] | None], state: npt.NDArray[np.int64]) -> None:
    """The loop of a thread. state: memory of the team, kept alive for a thread that comes after the team's end."""
    while (task := queue.get()) is not None:
        work, handle = task
        work(number, handle)
        del task, work  # so that the arrays of a pass are freed before the next one


def _end(queues: list[SimpleQueue[tuple[Work, PassHandle] | None]]) -> None:
    for queue in queues:
        queue.put(None)
