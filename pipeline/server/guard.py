"""Runs a server and sees to its end: `python -m pipeline.server.guard SPEC`, a process between us and tritonserver.

The guard ends the server when it is told to (SIGTERM; SIGUSR1: give running requests time to finish), when the one who
started it is gone (its standard input closes), when a model's process dies, or when the server does; in every case it
kills what is left of the server's processes, removes its shared memory, its container and the state file, and writes
into the log how it ended.
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

from pipeline.server.log import write_end

# Marks every process of a server in its environment, so that leftovers can be told from strangers.
MARK = "LOOKAHEAD_SERVER_ID"
STOP_SECONDS = 15.0
# How long running requests may take to finish after SIGUSR1.
DRAIN_SECONDS = 60.0
_PR_SET_PDEATHSIG = 1
_CLEAN_UP_SECONDS = 30.0
# How often the models' processes are looked at, and how long a server that lost one may take to end by itself.
_WATCH_SECONDS = 1.0
_CRIPPLED_SECONDS = 2.0
# Triton runs each Python model in a process of this name, as far as the kernel keeps it.
_MODEL_PROCESS = "triton_python_backend_stub"[:15]


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
        [sys.executable, "-m", "pipeline.server.guard", str(path)],
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


def model_processes(server_id: str) -> dict[int, str]:
    """Processes in which a server runs Python models, by pid: the model of each."""
    mark, found = f"{MARK}={server_id}".encode(), {}
    for path in glob.glob("/proc/[0-9]*/comm"):
        with suppress(OSError):  # gone, or not ours to look at
            folder = Path(path).parent
            if Path(path).read_text().strip() != _MODEL_PROCESS:
                continue
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                arguments = (folder / "cmdline").read_text().split("\0")
                code = next((Path(argument) for argument in arguments if argument.endswith("/model.py")), None)
                found[int(folder.name)] = "" if code is None else code.parts[-3]  # MODEL/VERSION/model.py
    return found


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
        try:
            server = subprocess.Popen(
                spec.command,
                env=dict(spec.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_guard,
            )
        except OSError as error:  # nothing has begun; who waits for it removes the rest
            log.write(f"{spec.command[0]} cannot be run: {error.strerror}\n".encode())
            return 1
    end = _End()
    try:
        end = _wait_for_end(server, wake_read, spec)
        code = _stop(server, end.patience)
        return 1 if end.reason and not end.wanted else code
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        for pid in marked_processes(spec.server_id):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        run_clean_up(spec.clean_up)
        remove_shm(spec.server_id)
        Path(spec.state_path).unlink(missing_ok=True)
        write_end(Path(spec.log_path), end.wanted, end.reason or f"exit code {server.poll()}")


@dataclass(frozen=True, slots=True)
class _End:
    """Why the server should end; empty if it has. wanted: somebody asked for it. patience: for how long it may take."""

    reason: str = ""
    wanted: bool = False
    patience: float = 0.0


def _wait_for_end(server: subprocess.Popen[bytes], wake_fd: int, spec: GuardSpec) -> _End:
    fds = [wake_fd, sys.stdin.fileno()] if spec.watch_parent else [wake_fd]
    models: dict[int, str] = {}
    while True:
        ready, _, _ = select.select(fds, [], [], _WATCH_SECONDS)
        if wake_fd in ready and (told := set(os.read(wake_fd, 64)) - {signal.SIGCHLD}):
            name = signal.Signals(min(told)).name
            return _End(name, True, DRAIN_SECONDS if told == {signal.SIGUSR1} else STOP_SECONDS)
        if server.poll() is not None:
            return _End()
        if len(fds) > 1 and fds[1] in ready and not os.read(fds[1], 1):
            return _End("who started it is gone", True, STOP_SECONDS)
        alive = model_processes(spec.server_id)
        if dead := models.keys() - alive.keys():
            # Triton starts none of them again, calls itself ready all the same, and leaves their requests unanswered.
            with suppress(subprocess.TimeoutExpired):
                server.wait(_CRIPPLED_SECONDS)  # one that fails to load a model says why, and ends by itself
                return _End()
            alive = model_processes(spec.server_id)  # a second look, as the first one may have failed
            if dead := models.keys() - alive.keys():
                return _End(f"the process of the model {models[min(dead)]} died; was there too little memory?")
        models = alive


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
