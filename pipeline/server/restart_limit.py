"""Limits how often a guard starts its server again. Standard library only, because the guard uses it."""

from __future__ import annotations

import time


class RestartLimit:
    """Counts the restarts of a server: at most max_restarts within window_s seconds.

    Triton rarely aborts or hangs at a start (see `failure.transient_failure`). The restart after it does not count,
    unless there are more than max_restarts such starts in a row."""

    def __init__(self, max_restarts: int, window_s: float) -> None:
        self._max_restarts, self._window_s = max_restarts, window_s
        self._times: list[float] = []
        self._num_transient = 0

    def permits_restart(self, transient: bool) -> bool:
        """Record the end of the server. Returns whether it may be started again. transient: whether the start failed in
        such a way."""
        self._num_transient = self._num_transient + 1 if transient else 0
        if transient:
            return self._num_transient <= self._max_restarts
        now = time.monotonic()
        self._times = [when for when in self._times if now - when < self._window_s]
        return len(self._times) < self._max_restarts

    def add(self) -> None:
        """Count the restart after the last end."""
        if not self._num_transient:
            self._times.append(time.monotonic())
