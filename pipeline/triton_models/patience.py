"""Retry policy of a request whose engine is busy."""

from __future__ import annotations

import asyncio
import time

from pipeline.errors import BusyError

# The first pause before a retry; each pause is twice as long as the one before.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 0.5
BUSY_PATIENCE_S = 30.0


class Patience:
    """Pauses of one call. has_begun: whether the request has had an answer; one that has not is refused at once."""

    def __init__(self, has_begun: bool) -> None:
        self._until = time.perf_counter() + BUSY_PATIENCE_S if has_begun else 0.0
        self._pause = _FIRST_PAUSE_S

    async def wait(self, error: BusyError) -> None:
        """Wait before the call is made again. Raises error when it is time to give up."""
        if time.perf_counter() + self._pause > self._until:
            raise error
        await asyncio.sleep(self._pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_S)
