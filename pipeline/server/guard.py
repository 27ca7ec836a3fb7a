"""Supervises one server: `python -m pipeline.server.guard SPEC`, a process between the command and tritonserver.

The guard ends the server on SIGTERM or SIGUSR1 (running requests may finish), when its run folder is removed, and when
the owner ends: standard input closes without `release_guard`, or the process in the spec ends. It restarts the server,
a limited number of times, if a model's process dies, if the server dies after it was ready, or if it hangs. Log and
state file record count and reason. A server that needs etcd is not restarted before etcd answers.

After each end of the server, the guard kills the remaining processes and removes shared memory and container. After the
last end it removes the state file and writes the reason to the log. If the guard is killed, the kernel ends the server.
The guard imports few modules, of the standard library only, so it starts fast and needs little memory.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from pipeline.server.leftovers import remove_leftovers, run_clean_up
from pipeline.server.log import LOG, VERBOSE_LOG, limit_size, write_end, write_restart
from pipeline.server.processes import make_private, remove_environments, remove_shm, start_time
from pipeline.server.restart_limit import RestartLimit
from pipeline.server.shared_services import end_shared_service, kill_processes_of, load_state, locked_state
from pipeline.server.watch import HangWatch, ModelWatch, ServiceWatch, any_answers

_CODE = Path(__file__).resolve().parents[2]
# Files in the folder of a guard: its spec, and one that exists once the server has been ready.
_SPEC, READY_FILE = "guard.json", "ready"
# Environment variable with the pid of a process. Servers with this variable end with that process, even detached ones.
OWNER = "LOOKAHEAD_OWNER_PID"
STOP_SECONDS = 15.0
# Time for running requests to finish after SIGUSR1.
DRAIN_SECONDS = 60.0
_PR_SET_PDEATHSIG = 1
# Default limit of restarts.
MAX_RESTARTS = 3
_RESTART_WINDOW_S = 600.0
HANG_SECONDS = 60.0


class GuardSpec(NamedTuple):
    """Command to run, and resources to remove afterwards.

    folder: of the log, of the state file state_name, and of READY_FILE. server_id: value of MARK, and prefix of the
    shared memory. clean_up: command that removes a container. links: symbolic links, created before the start and
    removed with the shared memory. owner: pid and start time of a process; the server ends with it. url: of Triton's
    HTTP interface; empty for other processes. hang_seconds: limit of inactivity until the server is ready.
    max_restarts: limit of restarts within restart_window_s. shared_services: state files of services that end with the
    last of the servers in their `ends_with`. leftovers_path: file in which the server lists what to remove at its end,
    see `remove_leftovers`. watched_url, watched_needs: see `ServiceWatch`, once READY_FILE exists. waits_for: URLs, one
    of which must answer before a restart. watch_seconds: interval of the checks. degraded_seconds: time limit of a
    server that lost a model's process to end by itself. loading_seconds: time limit for ending a server that still
    loads its models; Triton itself would end only after loading."""

    command: Sequence[str]
    environment: dict[str, str]
    folder: str
    state_name: str
    server_id: str
    clean_up: Sequence[str] = ()
    links: Mapping[str, str] = {}
    owner: tuple[int, int] | None = None
    url: str = ""
    hang_seconds: float = HANG_SECONDS
    max_restarts: int = MAX_RESTARTS
    restart_window_s: float = _RESTART_WINDOW_S
    shared_services: Sequence[str] = ()
    leftovers_path: str = ""
    watched_url: str = ""
    watched_needs: Sequence[Sequence[str]] = ()
    waits_for: Sequence[str] = ()
    watch_seconds: float = 1.0
    degraded_seconds: float = 2.0
    loading_seconds: float = 1.0

    @property
    def state_path(self) -> Path:
        return Path(self.folder, self.state_name)


def start_guard(spec: GuardSpec) -> subprocess.Popen[bytes]:
    """Start a guard, which ends with this process unless `release_guard` is called."""
    path = Path(spec.folder, _SPEC)
    path.touch(mode=0o600)  # it holds the environment
    path.write_text(json.dumps(spec._asdict()), encoding="utf-8")
    return subprocess.Popen(
        [sys.executable, "-S", "-m", "pipeline.server.guard", str(path)],
        cwd=_CODE,
        env=spec.environment | {"PYTHONPATH": str(_CODE)},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def read_guard_spec(folder: Path) -> GuardSpec:
    """The spec of the guard that was started last in a folder."""
    return GuardSpec(**json.loads((folder / _SPEC).read_text(encoding="utf-8")))


def release_guard(guard: subprocess.Popen[bytes]) -> None:
    """Let a guard outlive this process. A second call does nothing."""
    assert guard.stdin is not None
    if not guard.stdin.closed:
        with suppress(BrokenPipeError), guard.stdin:  # the guard has ended
            guard.stdin.write(b"\n")


def stop_guard(guard: subprocess.Popen[bytes]) -> None:
    """Stop the server of a guard that this process started, and wait for the end. A second call does nothing."""
    if guard.poll() is None:
        guard.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        guard.wait(STOP_SECONDS + 10)
    assert guard.stdin is not None
    guard.stdin.close()


def owner() -> tuple[int, int] | None:
    """Pid and start time of the process that OWNER names, if that process runs."""
    pid = int(os.environ.get(OWNER, "0"))
    started = start_time(pid) if pid else None
    return None if started is None else (pid, started)


def main() -> int:
    """Run the server of the spec file, with restarts. Returns its last exit code."""
    spec = read_guard_spec(Path(sys.argv[1]).parent)
    log = Path(spec.folder, LOG)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD):
        signal.signal(number, lambda number, frame: None)
    log.write_bytes(b"")
    end, code, num_restarts, output = _End(), 1, 0, log.open("ab")
    fds, folder = [wake_read, sys.stdin.fileno()], os.open(spec.folder, os.O_PATH)
    limit = RestartLimit(spec.max_restarts, spec.restart_window_s)
    try:
        while True:
            try:
                server = _start(spec, output)
            except OSError as error:
                end = _End(f"{spec.command[0]} cannot be run: {error.strerror}")
                return 1
            end = _wait_for_end(server, fds, folder, spec, output)
            code = _stop(server, end.patience)
            if not end.restart or not limit.permits_restart(end.transient):
                return 1 if end.reason and not end.wanted else code
            num_restarts += 1
            _kill_rest(spec, server)
            reason = end.reason or _how(code)
            can_start = not spec.waits_for or any_answers(spec.waits_for)
            if not can_start:
                reason += f"; waiting until there is an answer at {' or '.join(spec.waits_for)}"
            write_restart(log, num_restarts, reason)
            record_restart(spec.state_path, num_restarts, reason)
            if can_start:
                limit.add()
            elif (requested := _wait_until_it_can_start(fds, folder, spec)) is not None:
                end = requested
                return 0
    finally:
        _kill_rest(spec, None)
        for service in spec.shared_services:
            end_shared_service(Path(service), spec.server_id)
        if load_state(spec.state_path).get("server_id") in (None, spec.server_id):
            spec.state_path.unlink(missing_ok=True)
        write_end(log, end.wanted, end.reason or _how(code))


def record_restart(state_path: Path, number: int, reason: str) -> None:
    """Record a restart in the state file, if the server has written one and the disk is not full."""
    with suppress(OSError), locked_state(state_path) as state:
        if state:
            state |= {"restarts": number, "restart_reason": reason}


def _start(spec: GuardSpec, log: BinaryIO) -> subprocess.Popen[bytes]:
    for name, target in spec.links.items():
        Path(name).symlink_to(target)
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
    """Kill the remaining processes of a server that has ended; remove its container, memory, links and folders."""
    if server is not None:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
    kill_processes_of(spec.server_id)
    remove_leftovers(Path(spec.leftovers_path))
    run_clean_up(spec.clean_up)
    remove_shm(spec.server_id)
    remove_environments()


class _End(NamedTuple):
    """reason: why the server should end; empty if it ended by itself. wanted: whether that was requested. patience:
    limit of the end in seconds. restart: whether to start it again. transient: whether Triton failed at the start, by
    SIGABRT or by doing nothing."""

    reason: str = ""
    wanted: bool = False
    patience: float = 0.0
    restart: bool = False
    transient: bool = False


def _wait_for_end(server: subprocess.Popen[bytes], fds: list[int], folder: int, spec: GuardSpec, log: BinaryIO) -> _End:
    """Wait until the server ends or should end. fds: wake-up of signals, and standard input until it is released.
    folder: the run folder, opened. log: of the server."""
    watch = HangWatch(spec.server_id, spec.url, spec.hang_seconds)
    service, ready_file = ServiceWatch(spec.watched_url, spec.watched_needs), Path(spec.folder, READY_FILE)
    models = ModelWatch(spec.server_id)
    while True:
        ready, _, _ = select.select(fds, [], [], spec.watch_seconds)
        is_ready = watch.is_ready()
        if (requested := _requested_end(fds, ready, folder, spec, is_ready)) is not None:
            return requested
        if server.poll() is not None:
            return _End(restart=ready_file.exists(), transient=not is_ready and server.returncode == -signal.SIGABRT)
        if how := watch.hangs():
            return _End(how if is_ready else f"{how} before it was ready", restart=True, transient=not is_ready)
        if ready_file.exists() and (how := service.fails()):
            return _End(how, restart=True)
        make_private(spec.server_id)
        limit_size(log)
        with suppress(OSError), Path(spec.folder, VERBOSE_LOG).open("r+b") as verbose:  # few servers have it
            limit_size(verbose)
        # Before it is ready, a server that loses a model's process logs the reason and ends by itself.
        if dead := models.dead_models(spec.degraded_seconds if is_ready else spec.hang_seconds):
            processes = "process of the model" if len(dead) == 1 else "processes of the models"
            how = f"the {processes} {', '.join(dead)} died; the log may say why, else memory was too small"
            return _End(how, restart=True)


def _wait_until_it_can_start(fds: list[int], folder: int, spec: GuardSpec) -> _End | None:
    """Wait until the server can be started again. Returns None then, or why it should end instead."""
    while not any_answers(spec.waits_for):
        ready, _, _ = select.select(fds, [], [], spec.watch_seconds)
        if (requested := _requested_end(fds, ready, folder, spec, False)) is not None:
            return requested
    return None


def _requested_end(fds: list[int], ready: list[int], folder: int, spec: GuardSpec, is_ready: bool) -> _End | None:
    """Why the server must end now; None if it need not. Without its run folder no command finds it. ready: those of
    `fds` that can be read. folder: the run folder, opened. is_ready: whether the server is ready."""
    wake_fd, patience = fds[0], STOP_SECONDS if is_ready else spec.loading_seconds
    if wake_fd in ready and (received := set(os.read(wake_fd, 64)) - {signal.SIGCHLD}):
        drains = is_ready and received == {signal.SIGUSR1}
        return _End(signal.Signals(min(received)).name, True, DRAIN_SECONDS if drains else patience)
    if len(fds) > 1 and fds[1] in ready and not os.read(fds.pop(), 1):
        return _End("the command that started it has ended", True, patience)
    if spec.owner is not None and start_time(spec.owner[0]) != spec.owner[1]:
        return _End("the command that owns it has ended", True, patience)
    if os.readlink(f"/proc/self/fd/{folder}").endswith(" (deleted)"):  # some file systems count no links
        return _End("its run folder was removed", True, patience)
    return None


def _how(code: int) -> str:
    """How a process ended. code: its exit code, negative for a signal."""
    return f"signal {-code}, {signal.strsignal(-code)}" if code < 0 else f"exit code {code}"


def _stop(server: subprocess.Popen[bytes], patience: float) -> int:
    server.terminate()
    try:
        return server.wait(patience)
    except subprocess.TimeoutExpired:
        server.kill()
        return server.wait()


def _prepare_child() -> None:
    """End with the guard, and make files of the server unreadable for other users."""
    os.umask(0o077)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
