"""Runs a server and sees to its end: `python -m pipeline.serving.guard SPEC`, a process between us and tritonserver.

The guard ends the server when it is told to (SIGTERM), when the one who started it is gone (its standard input closes),
or when the server dies; in every case it kills what is left of the server's process group, removes its shared memory
and the state file. If the guard itself is killed, the kernel ends the server. Standard library only: it starts fast and
stays small.
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
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

# Marks every process of a server in its environment, so that leftovers can be told from strangers.
MARK = "LOOKAHEAD_SERVER_ID"
STOP_SECONDS = 15.0
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class GuardSpec:
    """What to run and what to remove afterwards. watch_parent: end when standard input closes."""

    command: Sequence[str]
    environment: dict[str, str]
    log_path: str
    state_path: str
    shm_prefix: str
    watch_parent: bool

    def dump(self) -> str:
        return json.dumps(asdict(self))


def shm_files(prefix: str) -> list[Path]:
    """Shared memory regions whose names start with prefix."""
    return [Path(name) for name in glob.glob(f"/dev/shm/{glob.escape(prefix)}*")]


def remove_shm(prefix: str) -> None:
    for path in shm_files(prefix):
        path.unlink(missing_ok=True)


def main() -> int:
    """Run the server named by the spec file until its end; returns its exit code."""
    spec = GuardSpec(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, lambda number, frame: None)
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
    try:
        _wait_for_end(server, wake_read, spec.watch_parent)
        return _stop(server)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        remove_shm(spec.shm_prefix)
        Path(spec.state_path).unlink(missing_ok=True)


def _wait_for_end(server: subprocess.Popen[bytes], wake_fd: int, watch_parent: bool) -> None:
    fds = [wake_fd, sys.stdin.fileno()] if watch_parent else [wake_fd]
    while True:
        ready, _, _ = select.select(fds, [], [])
        if wake_fd in ready and set(os.read(wake_fd, 64)) - {signal.SIGCHLD}:
            return
        if server.poll() is not None:
            return
        if len(fds) > 1 and fds[1] in ready and not os.read(fds[1], 1):
            return


def _stop(server: subprocess.Popen[bytes]) -> int:
    server.terminate()
    try:
        return server.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        return server.wait()


def _die_with_guard() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
