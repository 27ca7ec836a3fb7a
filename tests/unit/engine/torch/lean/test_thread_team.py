"""Each unit of a phase is executed once, and new callers of the loop can be compiled at any time."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from numba.core.caching import NullCache

from pipeline.engine.torch.lean.compilation import kernel
from pipeline.engine.torch.lean.thread_team import (
    COUNTER_BYTES,
    PassHandle,
    ThreadTeam,
    enter_pass,
    leave_pass,
    work_units,
)


@kernel
def count_units(thread: int, handle: PassHandle, counts: np.ndarray, counter: int) -> None:
    if not enter_pass(handle):
        return
    for unit in work_units(thread, counter, len(counts), 3):
        counts[unit] += 1
    leave_pass(thread, handle)


def test_every_unit_is_taken_once_by_some_thread_in_each_of_many_passes() -> None:
    counts = np.zeros(100, np.int64)
    counters = np.zeros(2 * COUNTER_BYTES // 8, np.int64)
    # One thread compiles the function.
    ThreadTeam(1).run(lambda thread, handle: count_units(thread, handle, counts, counters.ctypes.data))
    team = ThreadTeam(3)
    for _ in range(2000):
        counts[:], counters[:] = 0, 0
        team.run(lambda thread, handle: count_units(thread, handle, counts, counters.ctypes.data))
        assert counts.tolist() == [1] * 100


@kernel
def note_order(thread: int, order: np.ndarray, counter: int) -> None:
    for place, unit in enumerate(work_units(thread, counter, len(order), 4)):
        order[place] = unit


def test_threads_take_units_from_opposite_ends() -> None:
    orders = []
    for thread in (0, 1):
        order, counters = np.zeros(10, np.int64), np.zeros(2 * COUNTER_BYTES // 8, np.int64)
        note_order(thread, order, counters.ctypes.data)
        orders.append(order.tolist())
    assert orders == [list(range(10)), [8, 9, 4, 5, 6, 7, 0, 1, 2, 3]]


def test_a_thread_that_comes_late_touches_nothing() -> None:
    counts = np.zeros(10, np.int64)
    counters = np.zeros(2 * COUNTER_BYTES // 8, np.int64)
    team = ThreadTeam(1)
    handles: list[PassHandle] = []

    def work(thread: int, handle: PassHandle) -> None:
        for late in handles:  # another pass is open
            count_units(1, late, counts, counters.ctypes.data)
        assert not counts.any()
        count_units(thread, handle, counts, counters.ctypes.data)
        handles.append(handle)

    for _ in range(2):
        counts[:], counters[:] = 0, 0
        team.run(work)
        assert counts.tolist() == [1] * 10
        for late in handles:  # no pass is open
            counters[:] = 0
            count_units(1, late, counts, counters.ctypes.data)
        assert counts.tolist() == [1] * 10


def test_an_exception_before_the_pass_waits_for_the_other_threads_and_closes_it() -> None:
    counts = np.zeros(100, np.int64)
    counters = np.zeros(2 * COUNTER_BYTES // 8, np.int64)
    handles: list[PassHandle] = []

    def work(thread: int, handle: PassHandle) -> None:
        if thread == 0:
            handles.append(handle)
            raise KeyboardInterrupt
        count_units(thread, handle, counts, counters.ctypes.data)

    with pytest.raises(KeyboardInterrupt):
        ThreadTeam(2).run(work)
    counts[:], counters[:] = 0, 0
    count_units(1, handles[0], counts, counters.ctypes.data)
    assert not counts.any()


def test_the_threads_end_with_the_team() -> None:
    team = ThreadTeam(3)
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("lean-pass")]
    assert len(threads) >= 2
    del team
    for thread in threads[-2:]:
        thread.join(timeout=60)
        assert not thread.is_alive()


def test_the_loop_over_units_is_not_kept_on_disk() -> None:
    # numba raises KeyError where it compiles a caller of a generator that it has loaded from disk.
    assert isinstance(work_units._cache, NullCache)  # type: ignore[attr-defined]
