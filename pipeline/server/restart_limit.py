"""Limits how often a guard starts its server again. Standard library only, because the guard uses it."""

from __future__ import annotations

import time


class RestartLimit:
    """Counts the restarts of a server: at most max_restarts within window_s seconds.

    Triton rarely aborts at a start (see `failure.transient_failure`). The restart after it does not count, unless there
    are more than max_restarts aborted starts in a row."""

    def __init__(self, max_restarts: int, window_s: float) -> None:
        self._max_restarts, self._window_s = max_restarts, window_s
        self._times: list[float] = []
        self._num_aborted = 0

    def permits_restart(self, aborted: bool) -> bool:
        """Record the end of the server. Returns whether it may be started again. aborted: whether the start failed by
        an abort."""
        self._num_aborted = self._num_aborted + 1 if aborted else 0
        if aborted:
            return self._num_aborted <= self._max_restarts
        now = time.monotonic()
        self._times = [when for when in self._times if now - when < self._window_s]
        return len(self._times) < self._max_restarts

    def add(self) -> None:
        """Count the restart after the last end."""
        if not self._num_aborted:
            self._times.append(time.monotonic())
