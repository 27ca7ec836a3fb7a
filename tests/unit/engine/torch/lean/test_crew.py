"""Units of a phase are shared out once each, and the loop over them can be compiled into a new caller at any time."""

from __future__ import annotations

import numpy as np
from numba.core.caching import NullCache

from pipeline.engine.torch.lean.compilation import kernel
from pipeline.engine.torch.lean.crew import COUNTER_BYTES, Crew, shared


@kernel
def count_units(counts: np.ndarray, counter: int) -> None:
    for unit in shared(counter, len(counts), 3):
        counts[unit] += 1


def test_every_unit_is_taken_once_by_some_thread() -> None:
    counts = np.zeros(100, np.int64)
    counters = np.zeros(2 * COUNTER_BYTES // 8, np.int64)
    count_units(np.zeros(0, np.int64), counters.ctypes.data)  # compiled by one thread
    counters[:] = 0
    Crew(2).run(lambda thread: count_units(counts, counters.ctypes.data))
    assert counts.tolist() == [1] * 100


def test_the_loop_over_units_is_not_kept_on_disk() -> None:
    # numba raises KeyError where it compiles a caller of a generator that it has loaded from disk.
    assert isinstance(shared._cache, NullCache)  # type: ignore[attr-defined]
