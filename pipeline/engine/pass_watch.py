"""Ends the process of an engine whose step never ends, as on a GPU that hangs, so that the server is started again."""

from __future__ import annotations

import faulthandler
import os
import sys

from pipeline.engine.scheduler import Scheduler

CHECK_PERIOD_S = 1.0


class PassWatch:
    """Counts the checks during one step of the scheduler. A suspended process makes none, so neither a suspension, of
    the machine or by a debugger, nor a jump of the clock counts as a long step."""

    def __init__(self, scheduler: Scheduler, limit_s: float) -> None:
        self._scheduler = scheduler
        self._limit_s = limit_s
        self._step: object | None = None
        self._num_checks = 0

    def check(self) -> None:
        """End this process, with the stacks of its threads on stderr, if one step has lasted longer than the limit.
        Call it from another thread than the scheduler's, at intervals of CHECK_PERIOD_S or longer."""
        step = self._scheduler.running_step
        self._num_checks = self._num_checks + 1 if step is not None and step is self._step else 0
        self._step = step
        if self._num_checks * CHECK_PERIOD_S > self._limit_s:
            print(
                f"A step of the engine has lasted longer than {self._limit_s:g} s (server.gateway.request_timeout_s). "
                "Its process ends. These are its threads:",
                file=sys.stderr,
            )
            faulthandler.dump_traceback()
            os._exit(1)
