"""Runs a server and sees to its end: `python -m pipeline.serving.guard SPEC`, a process between us and tritonserver.

The guard ends the server when it is told to (SIGTERM; SIGUSR1: give running requests time to finish), when the one who
started it is gone (its standard input closes), or when the server dies; in every case it kills what is left of the
server's processes, removes its shared memory, its container and the state file, and writes into the log how it ended.
If the guard itself is killed, the kernel ends the server. Standard library only: it starts fast and stays small.
"""

from __future__ import annotations

import ctypes
import glob
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pipeline.serving.log import write_end

# Marks every process of a server in its environment, so that leftovers can be told from strangers.
MARK = "LOOKAHEAD_SERVER_ID"
STOP_SECONDS = 15.0
# How long running requests may take to finish after SIGUSR1.
DRAIN_SECONDS = 60.0
_PR_SET_PDEATHSIG = 1
_CLEAN_UP_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class GuardSpec:
    """What to run and what to remove afterwards. server_id: value of MARK, and how its shared memory is named.
    watch_parent: end when standard input closes. clean_up: command that removes what outlives the processes. links: to
    make first, named as shared memory is, and removed with it."""

    command: Sequence[str]
    environment: dict[str, str]
    log_path: str
    state_path: str
    server_id: str
    watch_parent: bool
    clean_up: Sequence[str] = ()
    links: Mapping[str, str] = field(default_factory=dict)

    def dump(self) -> str:
        return json.dumps(asdict(self))


def start_guard(spec: GuardSpec, path: Path, home: Path) -> subprocess.Popen[bytes]:
    """A guard for a server. path: where to write the spec, which holds the environment. home: folder of our package."""
    path.touch(mode=0o600)
    path.write_text(spec.dump(), encoding="utf-8")
    return subprocess.Popen(
        [sys.executable, "-m", "pipeline.serving.guard", str(path)],
        cwd=home,
        env=spec.environment | {"PYTHONPATH": str(home)},
        stdin=subprocess.PIPE if spec.watch_parent else subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def shm_files(prefix: str) -> list[Path]:
    """Shared memory regions whose names start with prefix."""
    return [Path(name) for name in glob.glob(f"/dev/shm/{glob.escape(prefix)}*")]


def remove_shm(prefix: str) -> None:
    for path in shm_files(prefix):
        path.unlink(missing_ok=True)


def marked_processes(server_id: str) -> list[int]:
    """Processes of a server, those in sessions of their own (below mpirun) included; never this one."""
    mark, found = f"{MARK}={server_id}".encode(), []
    for path in glob.glob("/proc/[0-9]*/environ"):
        with suppress(OSError):  # gone, or not ours to look at
            if mark in Path(path).read_bytes().split(b"\0"):
                found.append(int(path.split("/")[2]))
    return [pid for pid in found if pid != os.getpid()]


def run_clean_up(command: Sequence[str]) -> None:
    """Remove a container. It is gone already after a server that ended well, which is no fault."""
    if command:
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(command, capture_output=True, timeout=_CLEAN_UP_SECONDS, check=False)


def main() -> int:
    """Run the server named by the spec file until its end; returns its exit code."""
    spec = GuardSpec(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD):
        signal.signal(number, lambda number, frame: None)
    for name, target in spec.links.items():
        Path(name).symlink_to(target)
    with Path(spec.log_path).open("wb") as log:
        server = subprocess.Popen(
            spec.command,
            env=dict(spec.environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_guard,
        )
    reason: str | None = None
    try:
        reason, patience = _wait_for_end(server, wake_read, spec.watch_parent)
        return _stop(server, patience)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        for pid in marked_processes(spec.server_id):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        run_clean_up(spec.clean_up)
        remove_shm(spec.server_id)
        Path(spec.state_path).unlink(missing_ok=True)
        write_end(Path(spec.log_path), reason is not None, reason or f"exit code {server.poll()}")


def _wait_for_end(server: subprocess.Popen[bytes], wake_fd: int, watch_parent: bool) -> tuple[str | None, float]:
    """Why the server should end (None: it has), and for how long it may take."""
    fds = [wake_fd, sys.stdin.fileno()] if watch_parent else [wake_fd]
    while True:
        ready, _, _ = select.select(fds, [], [])
        if wake_fd in ready and (told := set(os.read(wake_fd, 64)) - {signal.SIGCHLD}):
            name = signal.Signals(min(told)).name
            return name, DRAIN_SECONDS if told == {signal.SIGUSR1} else STOP_SECONDS
        if server.poll() is not None:
            return None, 0.0
        if len(fds) > 1 and fds[1] in ready and not os.read(fds[1], 1):
            return "who started it is gone", STOP_SECONDS


def _stop(server: subprocess.Popen[bytes], patience: float) -> int:
    server.terminate()
    try:
        return server.wait(patience)
    except subprocess.TimeoutExpired:
        server.kill()
        return server.wait()


def _die_with_guard() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
