"""Finds the processes of a server in /proc, and its shared memory regions in /dev/shm. Standard library only, because
the guard uses it."""

from __future__ import annotations

import glob
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

# Environment variable that marks every process of a server, to identify leftover processes.
MARK = "LOOKAHEAD_SERVER_ID"
# Name of the processes that run Python models. The kernel stores 15 characters.
_MODEL_PROCESS = b"triton_python_backend_stub"[:15]
# Library of Triton's Python backend. Each server that loads it creates one folder, and removes it at a normal end. The
# path is fixed in the library.
_PYTHON_BACKEND = b"/libtriton_python.so"
_ENVIRONMENTS = "/tmp/python_env_*"
# Signals of crashes, as the kernel shows a set of signals.
_CRASHES = 1 << signal.SIGABRT - 1 | 1 << signal.SIGSEGV - 1


def marked_processes(server_id: str) -> list[int]:
    """Pids of the processes of a server except this one. Includes other sessions, such as those below mpirun."""
    mark, found = f"{MARK}={server_id}".encode(), []
    for pid in _pids():
        with suppress(OSError):  # gone, or of another user
            if mark in _read(pid, "environ").split(b"\0"):
                found.append(pid)
    return [pid for pid in found if pid != os.getpid()]


def model_processes(server_id: str) -> dict[int, str]:
    """Pid and model of each process that runs a Python model of a server. Forked children are excluded, because they
    may end at any time; until they run another program, only their parent distinguishes them."""
    mark, found = f"{MARK}={server_id}".encode(), {}
    for pid in _pids():
        with suppress(OSError):  # gone, or of another user
            if _runs_model(pid) and mark in _read(pid, "environ").split(b"\0"):
                arguments = _read(pid, "cmdline").decode().split("\0")
                code = next((Path(argument) for argument in arguments if argument.endswith("/model.py")), None)
                # `code` is None while the process ends. The parent is read now, because it may have run another program
                # when this loop passed it.
                if code is not None and not _runs_model(_stat(pid)[1]):
                    found[pid] = code.parts[-3]  # MODEL/VERSION/model.py
    return found


def remove_environments() -> None:
    """Remove the empty folders of killed servers. Their names do not show their owner, so all stay while any process
    has loaded Triton's Python backend."""
    paths = glob.glob(_ENVIRONMENTS)  # listed first: a server that starts now keeps its folder
    for pid in _pids() if paths else ():
        with suppress(OSError):  # gone, or of another user
            if _PYTHON_BACKEND in _read(pid, "maps"):
                return
    for path in paths:
        with suppress(OSError):  # not empty, gone, or of another user
            os.rmdir(path)


def start_time(pid: int) -> int | None:
    """Start time of a process in the kernel's ticks; None if there is no such process. It distinguishes the process
    from a later one with the same pid."""
    with suppress(OSError):
        return int(_stat(pid)[19])
    return None


def is_suspended(pid: int) -> bool:
    """Whether a signal such as SIGSTOP has suspended a process."""
    with suppress(OSError):
        return bool(_stat(pid)[0] == "T")
    return False


def is_crashing(pid: int) -> bool:
    """Whether the main thread of a process handles a crash. The kernel blocks the signal meanwhile. Triton's handler
    prints a trace, for which it can wait forever, and other threads continue to answer."""
    with suppress(OSError):
        return bool(_stat(pid)[29] & _CRASHES)
    return False


def seconds_since_start(pid: int) -> float:
    """Time since the start of a process; 0 if there is no such process. Jumps of the clock do not change it."""
    ticks = start_time(pid)
    return 0.0 if ticks is None else time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def work_of(pid: int) -> float:
    """Measure of a process's activity: processor seconds plus megabytes read, mapped files included."""
    with suppress(OSError, ValueError):
        fields = _stat(pid)
        counts = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
        read = int(counts["rchar"]) + int(counts["read_bytes"])
        return float((fields[11] + fields[12]) / os.sysconf("SC_CLK_TCK") + read / 1e6)
    return 0.0


def shm_files(prefix: str) -> list[Path]:
    """Shared memory regions whose names start with prefix."""
    return [Path(name) for name in glob.glob(f"/dev/shm/{glob.escape(prefix)}*")]


def make_private(prefix: str) -> None:
    """Make shared memory regions unreadable for other users. Triton makes them readable for all, whatever the umask. It
    creates them when it loads models, so before the first request."""
    for path in shm_files(prefix):
        with suppress(FileNotFoundError):
            if not path.is_symlink() and path.stat().st_mode & 0o077:
                path.chmod(0o600)


def remove_shm(prefix: str) -> None:
    """Remove the shared memory regions whose names start with prefix."""
    for path in shm_files(prefix):
        path.unlink(missing_ok=True)


def _pids() -> list[int]:
    """Pids of all processes."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _runs_model(pid: int) -> bool:
    return _read(pid, "comm").strip() == _MODEL_PROCESS


def _read(pid: int, name: str) -> bytes:
    """Content of a file of /proc/PID. pathlib is slower, and a guard reads files of all processes every second."""
    with open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:
        return file.read()


def _stat(pid: int) -> list[Any]:
    """Fields of /proc/PID/stat after the name: state, parent, and so on."""
    state, *numbers = _read(pid, "stat").decode().rpartition(")")[2].split()
    return [state, *map(int, numbers)]
