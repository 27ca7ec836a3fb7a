"""Detects a server or service that hangs, and a dead process of a model. Standard library only, because the guard uses
it."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from urllib.parse import urlsplit

from pipeline.server.processes import is_crashing, is_suspended, marked_processes, model_processes, work_of

# Limit of processor seconds plus megabytes read between two checks, for idle processes.
_IDLE_WORK = 0.5
# Interval of the checks of a server that is ready, and time limit for its answer. A server on a busy machine answers
# within seconds, also during a pass that takes longer.
_LIVE_PERIOD_S, _LIVE_LIMIT_S = 5.0, 30.0
_ANSWER_LIMIT_S = 2.0
_MAX_STATUS_LINE = 1000
# Symptom of a server that hangs before it is ready.
IDLE = "it did nothing"
# Time limit for a service that was started again to answer.
_START_LIMIT_S = 120.0


class _Failures:
    """Time for which a periodic check has failed. check: returns whether it succeeds."""

    def __init__(self, check: Callable[[], bool]) -> None:
        self._check = check
        self._since, self._checked_at = time.monotonic(), -math.inf

    def seconds(self) -> float:
        """Time since the last good check. Each call may check, so call it often."""
        now = time.monotonic()
        if (age_s := now - self._checked_at) >= _LIVE_PERIOD_S:
            self._checked_at = now
            # A late check follows a suspension of this process. The checked one may continue a moment later.
            if age_s > 2 * _LIVE_PERIOD_S or self._check():
                self._since = now
        return now - self._since


class HangWatch:
    """Detects a server that hangs. Before it is ready: its processes neither compute nor read, as in a deadlock of
    Triton's locks in shared memory. Afterwards: it does not answer, or the process of a model is suspended."""

    def __init__(self, server_id: str, url: str, hang_seconds: float) -> None:
        """url: of Triton's HTTP interface; empty to detect nothing. hang_seconds: limit of inactivity before the server
        is ready."""
        self._server_id, self._url, self._hang_seconds = server_id, url, hang_seconds
        self._is_ready = not url
        self._work, self._since = -1.0, time.monotonic()
        self._failures = _Failures(self._is_alive)

    def is_ready(self) -> bool:
        """Whether the server has been ready. True if there is no URL to check."""
        self._is_ready = self._is_ready or answers(f"{self._url}/v2/health/ready")
        return self._is_ready

    def hangs(self) -> str:
        """The symptom of a server that hangs, else an empty text. Each call takes a sample, so call it regularly."""
        if not self._url:
            return ""
        if self._is_ready:
            return _late("it did not answer", self._failures.seconds(), _LIVE_LIMIT_S)
        work, now = sum(map(work_of, marked_processes(self._server_id))), time.monotonic()
        if work - self._work > _IDLE_WORK:
            self._work, self._since = work, now
        return _late(IDLE, now - self._since, self._hang_seconds)

    def _is_alive(self) -> bool:
        suspended = any(map(is_suspended, model_processes(self._server_id)))
        crashing = any(map(is_crashing, marked_processes(self._server_id)))
        return not suspended and not crashing and answers(f"{self._url}/v2/health/live")


class ServiceWatch:
    """Detects a service that does not respond. A status other than 200 counts as no response if every group in `needs`
    is available. url: to request; empty to detect nothing. needs: groups of URLs; a group is available if one of its
    URLs answers (see `answers`). Without groups any status counts as a response."""

    def __init__(self, url: str, needs: Sequence[Sequence[str]]) -> None:
        self._url, self._needs = url, needs
        self._failures, self._has_worked = _Failures(self._works), False

    def fails(self) -> str:
        """The symptom of a service that does not respond, else an empty text. Call it often."""
        if not self._url:
            return ""
        limit_s = _LIVE_LIMIT_S if self._has_worked else _START_LIMIT_S
        return _late(f"it did not answer at {self._url}", self._failures.seconds(), limit_s)

    def _works(self) -> bool:
        status = status_of(self._url)
        works = status == 200 or (status is not None and not (self._needs and all(map(any_answers, self._needs))))
        self._has_worked |= works
        return works


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


def _late(what: str, seconds: float, limit_s: float) -> str:
    return f"{what} for {limit_s:.0f} s" if seconds > limit_s else ""


def any_answers(urls: Sequence[str]) -> bool:
    """Whether one of the URLs answers, see `answers`."""
    return any(map(answers, urls))


def answers(url: str) -> bool:
    """Whether a GET returns 200. For https, where the server may require a certificate, whether it accepts
    connections."""
    if is_https(url):
        with suppress(OSError):
            connect(url, _ANSWER_LIMIT_S)
            return True
        return False
    return status_of(url) == 200


def is_https(url: str) -> bool:
    """Whether a URL has the scheme https."""
    return urlsplit(url).scheme == "https"


def connect(url: str, timeout_s: float) -> None:
    """Connect to the server of an https URL. Without a port in the URL that is port 443, also for etcd: its client in
    Dynamo has no default of its own. Raises OSError, or ValueError for an invalid port."""
    parts = urlsplit(url)
    socket.create_connection((parts.hostname, parts.port or 443), timeout_s).close()


def status_of(url: str, body: bytes | None = None) -> int | None:
    """Send a GET, or a POST if there is a body. Returns the HTTP status; None without a response. Uses no proxy, and
    not http.client, whose import takes half as long as all other imports of a guard."""
    content = body or b""
    with suppress(OSError, ValueError):
        parts = urlsplit(url)
        head = f"{'GET' if body is None else 'POST'} {parts.path or '/'} HTTP/1.1\r\nHost: {parts.netloc}\r\n"
        head += f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
        address = parts.hostname, parts.port or 80
        with socket.create_connection(address, _ANSWER_LIMIT_S) as connection, connection.makefile("rb") as response:
            connection.sendall(head.encode() + content)
            version, status, *_ = response.readline(_MAX_STATUS_LINE).split()
            return int(status) if version.startswith(b"HTTP/") else None
    return None
