"""Detects a server that hangs before it is ready, and a dead process of a model. Standard library only, because the
guard uses it."""

from __future__ import annotations

import http.client
import time
import urllib.request
from contextlib import suppress

from pipeline.server.processes import marked_processes, model_processes, work_of

# Limit of processor seconds plus megabytes read between two checks, for idle processes.
_IDLE_WORK = 0.5


class StartWatch:
    """Detects a server whose processes compute and read nothing before it is ready, as in a deadlock of Triton's locks
    in shared memory."""

    def __init__(self, server_id: str, ready_url: str, hang_seconds: float) -> None:
        """ready_url: returns 200 once the server is ready; empty to detect nothing. hang_seconds: limit of
        inactivity."""
        self._server_id, self._ready_url, self._hang_seconds = server_id, ready_url, hang_seconds
        self._is_ready = not ready_url
        self._work, self._since = -1.0, time.monotonic()

    def is_ready(self) -> bool:
        """Whether the server has been ready. True if there is no URL to check."""
        self._is_ready = self._is_ready or _answers(self._ready_url)
        return self._is_ready

    def hangs(self) -> bool:
        """Whether a server that is not ready has been inactive for the time limit. Each call samples its activity, so
        call it often."""
        work = sum(map(work_of, marked_processes(self._server_id)))
        if work - self._work > _IDLE_WORK:
            self._work, self._since = work, time.monotonic()
        return time.monotonic() - self._since > self._hang_seconds


class ModelWatch:
    """Detects models whose process died. Triton does not restart the process, still reports itself ready, and never
    responds to the model's requests."""

    def __init__(self, server_id: str) -> None:
        self._server_id = server_id
        self._models: dict[int, str] = {}
        self._lost_since: dict[int, float] = {}

    def dead_models(self, patience: float) -> tuple[str, ...]:
        """Models whose process has disappeared, in the order of the disappearance; empty until one has been missing for
        `patience` seconds. Call it often."""
        alive, now = model_processes(self._server_id), time.monotonic()
        # One read of /proc can miss a process that still runs.
        self._lost_since = {pid: since for pid, since in self._lost_since.items() if pid not in alive}
        for pid in sorted(self._models.keys() - alive.keys()):
            self._lost_since.setdefault(pid, now)
        self._models |= alive
        if not any(now - since >= patience for since in self._lost_since.values()):
            return ()
        return tuple(dict.fromkeys(self._models[pid] for pid in self._lost_since))


def _answers(url: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with suppress(OSError, http.client.HTTPException), opener.open(url, timeout=2.0) as answer:
        return bool(answer.status == 200)
    return False
