"""Detects a server that hangs, and a dead process of a model. Standard library only, because the guard uses it."""

from __future__ import annotations

import http.client
import time
from contextlib import closing, suppress
from urllib.parse import urlsplit

from pipeline.server.processes import is_suspended, marked_processes, model_processes, work_of

# Limit of processor seconds plus megabytes read between two checks, for idle processes.
_IDLE_WORK = 0.5
# Interval of the checks of a server that is ready, and time limit for its answer. A server on a busy machine answers
# within seconds, also during a pass that takes longer.
_LIVE_PERIOD_S, _LIVE_LIMIT_S = 5.0, 30.0
_ANSWER_LIMIT_S = 2.0


class HangWatch:
    """Detects a server that hangs. Before it is ready that is one whose processes compute and read nothing, as in a
    deadlock of Triton's locks in shared memory; later one that does not answer, or with a suspended process of a
    model."""

    def __init__(self, server_id: str, url: str, hang_seconds: float) -> None:
        """url: of Triton's HTTP interface; empty to detect nothing. hang_seconds: limit of inactivity before the server
        is ready."""
        self._server_id, self._url, self._hang_seconds = server_id, url, hang_seconds
        self._is_ready = not url
        self._work, self._since, self._checked_at = -1.0, time.monotonic(), -_LIVE_LIMIT_S

    def is_ready(self) -> bool:
        """Whether the server has been ready. True if there is no URL to check."""
        self._is_ready = self._is_ready or _answers(f"{self._url}/v2/health/ready")
        return self._is_ready

    def hangs(self) -> str:
        """What the server does not do if it hangs; empty if it does not hang. Each call samples, so call it often."""
        if not self._url:
            return ""
        now, limit_s = time.monotonic(), _LIVE_LIMIT_S if self._is_ready else self._hang_seconds
        if not self._is_ready:
            work = sum(map(work_of, marked_processes(self._server_id)))
            if work - self._work > _IDLE_WORK:
                self._work, self._since = work, now
        elif (age_s := now - self._checked_at) >= _LIVE_PERIOD_S:
            self._checked_at = now
            # A late check follows a suspension of this process. The server may then continue a moment later.
            if age_s > 2 * _LIVE_PERIOD_S or self._is_alive():
                self._since = now
        if now - self._since <= limit_s:
            return ""
        return f"it did not answer for {limit_s:.0f} s" if self._is_ready else f"it did nothing for {limit_s:.0f} s"

    def _is_alive(self) -> bool:
        suspended = any(map(is_suspended, model_processes(self._server_id)))
        return not suspended and _answers(f"{self._url}/v2/health/live")


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
    return status_of(url) == 200


def status_of(url: str, body: bytes | None = None) -> int | None:
    """HTTP status of a GET, or of a POST of a body; None without a response. Without a proxy, and without
    urllib.request, which takes longer to import."""
    with suppress(OSError, http.client.HTTPException, ValueError):
        _, address, path, _, _ = urlsplit(url)
        with closing(http.client.HTTPConnection(address, timeout=_ANSWER_LIMIT_S)) as connection:
            connection.request("GET" if body is None else "POST", path, body)
            return connection.getresponse().status
    return None
