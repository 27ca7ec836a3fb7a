"""The server's log file: the end of the last run, and preserved logs of crashed runs.

The guard writes the last line of every log. If that line is not about a stop, the server crashed, failed to load, or
was killed with its guard. The next start then moves the log to `server.log.1` (older ones to .2 and .3) instead of
overwriting it. Standard library only, because the guard uses it.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

# Output of the server, and Triton's verbose log if it was asked for.
LOG, VERBOSE_LOG = "server.log", "triton.log"
KEPT_LOGS = 3
# Size at which the log of a running server begins again. Clients can cause lines, so it would otherwise fill the disk.
MAX_LOG_BYTES = 32 << 20
_STOPPED = "lookahead: the server was stopped"
_END_BYTES = 400


def write_end(path: Path, stopped: bool, reason: str) -> None:
    """Append the last line of a run. stopped: whether the end was requested."""
    _append(path, f"{_STOPPED if stopped else 'lookahead: the server ended by itself'} ({reason})")


def write_restart(path: Path, number: int, reason: str) -> None:
    """Append a line about a restart. number: of restarts so far, with this one."""
    _append(path, f"lookahead: restart {number} ({reason})")


def _append(path: Path, line: str) -> None:
    """Append a line, unless the disk is full: a server must be restarted and cleaned up all the same."""
    with suppress(OSError), path.open("a", encoding="utf-8") as file:
        file.write(f"\n{line}\n")


def limit_size(log: BinaryIO) -> None:
    """Empty a log that has become too long, after a copy to a file with `.old` behind its name. Its writers have opened
    it to append, so they continue at the beginning."""
    if os.fstat(log.fileno()).st_size > MAX_LOG_BYTES:
        with suppress(OSError):  # a full disk, or a removed folder
            shutil.copy(f"/proc/self/fd/{log.fileno()}", f"{log.name}.old")
        log.truncate(0)


def was_stopped(path: Path) -> bool:
    """Whether a log ends with a stop on request. False if there is no log."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _END_BYTES))
        lines = file.read().decode("utf-8", errors="replace").splitlines()
    return bool(lines) and lines[-1].startswith(_STOPPED)


def crash_log(run_dir: Path) -> Path | None:
    """The newest log of a run in run_dir that was not stopped on request; None if there is none. Call it only while no
    server runs, because the log of a running server has no last line yet."""
    current = run_dir / LOG
    if current.is_file() and not was_stopped(current):
        return current
    return kept_log(run_dir)


def kept_log(run_dir: Path) -> Path | None:
    """The newest preserved log; None if there is none."""
    path = _kept(run_dir, 1)
    return path if path.is_file() else None


def keep_previous(run_dir: Path) -> Path | None:
    """Preserve the previous log if its server was not stopped on request. Returns its new path, else None."""
    current = run_dir / LOG
    if not current.is_file() or was_stopped(current):
        return None
    for number in range(KEPT_LOGS - 1, 0, -1):
        with suppress(FileNotFoundError):
            _kept(run_dir, number).replace(_kept(run_dir, number + 1))
    return current.replace(_kept(run_dir, 1))


def _kept(run_dir: Path, number: int) -> Path:
    return run_dir / f"{LOG}.{number}"
