"""Runs a server and sees to its end: `python -m pipeline.server.guard SPEC`, a process between us and tritonserver.

The guard ends the server on a signal (SIGTERM; SIGUSR1: running requests get time to finish), when its owner is gone
(standard input closes, or a process named in the spec ends), or when the server ends. It starts the server again, a few
times at most, when a model's process dies, when the server dies after it was ready, or when it does nothing before;
log and state file hold the count and the reason. After every end it kills what is left of the server's processes and
removes its shared memory and container; after the last one also the state file, and the log's last line says how it
ended.
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

from pipeline.server.log import write_end, write_restart
from pipeline.server.processes import marked_processes, model_processes, start_time
from pipeline.server.start_watch import StartWatch

# Environment variable: pid of a process with which servers end that are started under it, detached ones too.
OWNER = "LOOKAHEAD_OWNER_PID"
STOP_SECONDS = 15.0
# How long running requests may take to finish after SIGUSR1.
DRAIN_SECONDS = 60.0
_PR_SET_PDEATHSIG = 1
_CLEAN_UP_SECONDS = 30.0
# A server that lost a model's process, or hangs while it starts, is started again so many times.
MAX_RESTARTS = 3
HANG_SECONDS = 60.0
# How often the models' processes are looked at, and how long a server that lost one may take to end by itself.
_WATCH_SECONDS = 1.0
_CRIPPLED_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class GuardSpec:
    """What to run and what to remove afterwards. server_id: value of MARK, and how its shared memory is named.
    watch_parent: end when standard input closes. clean_up: command that removes what outlives the processes. links: to
    make first, named as shared memory is, and removed with it. owner: pid and start time of a process with which the
    server ends. ready_url: answers 200 once the server is ready. hang_seconds: how long it may do nothing before.
    ready_path: a file that is there once the server has been ready. max_restarts: how often it is started again.
    companions: values of MARK of the services that end with it."""

    command: Sequence[str]
    environment: dict[str, str]
    log_path: str
    state_path: str
    server_id: str
    watch_parent: bool
    clean_up: Sequence[str] = ()
    links: Mapping[str, str] = field(default_factory=dict)
    owner: tuple[int, int] | None = None
    ready_url: str = ""
    hang_seconds: float = HANG_SECONDS
    ready_path: str = ""
    max_restarts: int = MAX_RESTARTS
    companions: Sequence[str] = ()

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


def make_private(prefix: str) -> None:
    """Let no other user read shared memory regions. Triton makes them readable for all, whatever the umask is; it does
    so when it loads models, so before the first request."""
    for path in shm_files(prefix):
        with suppress(FileNotFoundError):
            if not path.is_symlink() and path.stat().st_mode & 0o077:
                path.chmod(0o600)


def remove_shm(prefix: str) -> None:
    for path in shm_files(prefix):
        path.unlink(missing_ok=True)


def owner() -> tuple[int, int] | None:
    """Pid and start time of the process that OWNER names, if it names one that runs."""
    pid = int(os.environ.get(OWNER, "0"))
    started = start_time(pid) if pid else None
    return None if started is None else (pid, started)


def run_clean_up(command: Sequence[str]) -> None:
    """Remove a container. It is gone already after a server that ended well, which is no fault."""
    if command:
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(command, capture_output=True, timeout=_CLEAN_UP_SECONDS, check=False)


def main() -> int:
    """Run the server named by the spec file until its end; returns its exit code."""
    spec = GuardSpec(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    log = Path(spec.log_path)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD):
        signal.signal(number, lambda number, frame: None)
    log.write_bytes(b"")
    end, code, num_restarts = _End(), 1, 0
    try:
        while True:
            try:
                server = _start(spec)
            except OSError as error:
                end = _End(f"{spec.command[0]} cannot be run: {error.strerror}")
                return 1
            end = _wait_for_end(server, wake_read, spec)
            code = _stop(server, end.patience)
            if not end.restart or num_restarts == spec.max_restarts:
                return 1 if end.reason and not end.wanted else code
            num_restarts += 1
            _kill_rest(spec, server)
            reason = end.reason or f"exit code {code}"
            write_restart(log, num_restarts, reason)
            record_restart(Path(spec.state_path), num_restarts, reason)
    finally:
        _kill_rest(spec, None)
        for companion in spec.companions:
            _kill_marked(companion)
        Path(spec.state_path).unlink(missing_ok=True)
        write_end(log, end.wanted, end.reason or f"exit code {code}")


def record_restart(state_path: Path, number: int, reason: str) -> None:
    """Enter a restart into the state file, if the server has one by now."""
    with suppress(FileNotFoundError):
        state = json.loads(state_path.read_text(encoding="utf-8")) | {"restarts": number, "restart_reason": reason}
        partial = state_path.with_suffix(".partial")
        partial.touch(mode=0o600)  # it holds the key of Triton
        partial.write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")
        partial.replace(state_path)


def _start(spec: GuardSpec) -> subprocess.Popen[bytes]:
    for name, target in spec.links.items():
        Path(name).symlink_to(target)
    with Path(spec.log_path).open("ab") as log:
        return subprocess.Popen(
            spec.command,
            env=dict(spec.environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_prepare_child,
        )


def _kill_rest(spec: GuardSpec, server: subprocess.Popen[bytes] | None) -> None:
    """Kill what is left of a server that has ended; remove its container, shared memory and links."""
    if server is not None:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
    _kill_marked(spec.server_id)
    run_clean_up(spec.clean_up)
    remove_shm(spec.server_id)


def _kill_marked(server_id: str) -> None:
    for pid in marked_processes(server_id):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class _End:
    """Why the server should end; empty if it has. wanted: somebody asked for it. patience: for how long it may take.
    restart: it should be started again."""

    reason: str = ""
    wanted: bool = False
    patience: float = 0.0
    restart: bool = False


def _wait_for_end(server: subprocess.Popen[bytes], wake_fd: int, spec: GuardSpec) -> _End:
    fds = [wake_fd, sys.stdin.fileno()] if spec.watch_parent else [wake_fd]
    models: dict[int, str] = {}
    start = StartWatch(spec.server_id, spec.ready_url, spec.hang_seconds)
    while True:
        ready, _, _ = select.select(fds, [], [], _WATCH_SECONDS)
        if wake_fd in ready and (told := set(os.read(wake_fd, 64)) - {signal.SIGCHLD}):
            name = signal.Signals(min(told)).name
            return _End(name, True, DRAIN_SECONDS if told == {signal.SIGUSR1} else STOP_SECONDS)
        if server.poll() is not None:
            return _End(restart=bool(spec.ready_path) and Path(spec.ready_path).exists())
        if len(fds) > 1 and fds[1] in ready and not os.read(fds[1], 1):
            return _End("who started it is gone", True, STOP_SECONDS)
        if spec.owner is not None and start_time(spec.owner[0]) != spec.owner[1]:
            return _End("the command that owns it is gone", True, STOP_SECONDS)
        if start.hangs():
            return _End(f"it did nothing for {spec.hang_seconds:.0f} s before it was ready", restart=True)
        make_private(spec.server_id)
        alive = model_processes(spec.server_id)
        if dead := models.keys() - alive.keys():
            # Triton starts none of them again, calls itself ready all the same, and leaves their requests unanswered.
            with suppress(subprocess.TimeoutExpired):
                server.wait(_CRIPPLED_SECONDS)  # one that fails to load a model says why, and ends by itself
                return _End(restart=bool(spec.ready_path) and Path(spec.ready_path).exists())
            alive = model_processes(spec.server_id)  # a second look, as the first one may have failed
            if dead := models.keys() - alive.keys():
                reason = f"the process of the model {models[min(dead)]} died; was there too little memory?"
                return _End(reason, restart=True)
        models = alive


def _stop(server: subprocess.Popen[bytes], patience: float) -> int:
    server.terminate()
    try:
        return server.wait(patience)
    except subprocess.TimeoutExpired:
        server.kill()
        return server.wait()


def _prepare_child() -> None:
    """End with the guard, and let no other user read what the server writes."""
    os.umask(0o077)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
