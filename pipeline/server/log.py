"""The server's log file: how the last run ended, and the logs of runs that ended by themselves kept aside.

The guard writes the last line of every log. A log without "stopped" there belongs to a server that crashed, failed to
load, or was killed together with its guard: such a log is evidence, and the next start moves it to `server.log.1`
(older ones to .2 and .3) instead of overwriting it. Standard library only, as the guard uses it.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

LOG = "server.log"
KEPT_LOGS = 3
_STOPPED = "lookahead: the server was stopped"
_END_BYTES = 400


def write_end(path: Path, stopped: bool, reason: str) -> None:
    """Append the last line of a run. stopped: somebody asked for its end."""
    with path.open("a", encoding="utf-8") as file:
        file.write(f"\n{_STOPPED if stopped else 'lookahead: the server ended by itself'} ({reason})\n")


def write_restart(path: Path, number: int, reason: str) -> None:
    """Append that the server is started again."""
    with path.open("a", encoding="utf-8") as file:
        file.write(f"\nlookahead: restart {number} ({reason})\n")


def was_stopped(path: Path) -> bool:
    """Whether the run that a log belongs to has ended because somebody asked for it."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _END_BYTES))
        lines = file.read().decode("utf-8", errors="replace").splitlines()
    return bool(lines) and lines[-1].startswith(_STOPPED)


def crash_log(run_dir: Path) -> Path | None:
    """The newest log of a run in run_dir that ended by itself, if there is one. Not to be asked while a server runs:
    its own log has no last line yet."""
    current = run_dir / LOG
    if current.is_file() and not was_stopped(current):
        return current
    return kept_log(run_dir)


def kept_log(run_dir: Path) -> Path | None:
    """The newest log that was moved aside, if there is one."""
    path = _kept(run_dir, 1)
    return path if path.is_file() else None


def keep_previous(run_dir: Path) -> Path | None:
    """Make way for a new log. Returns where the previous one is now, if its server had ended by itself."""
    current = run_dir / LOG
    if not current.is_file() or was_stopped(current):
        return None
    for number in range(KEPT_LOGS - 1, 0, -1):
        with suppress(FileNotFoundError):
            _kept(run_dir, number).replace(_kept(run_dir, number + 1))
    return current.replace(_kept(run_dir, 1))


def _kept(run_dir: Path, number: int) -> Path:
    return run_dir / f"{LOG}.{number}"
