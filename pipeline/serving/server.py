"""A running tritonserver: start, wait until ready, find again, stop; nothing stays behind.

A *run folder* holds what belongs to one server: its state file, its log and the prepared backend. One server at a time
runs per run folder. The server itself is started and seen to its end by a guard process (see `guard`).
"""

from __future__ import annotations

import fcntl
import json
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import psutil
from pydantic import Field, ValidationError

from pipeline.config.places import Places
from pipeline.config.schema import Frozen, ServerConfig
from pipeline.engine.builder import Note
from pipeline.errors import ServerError
from pipeline.files import log_tail, write_whole
from pipeline.served import gate
from pipeline.serving.command import VERBOSE_LOG, MakeCommand, single_process
from pipeline.serving.failure import explain_failure, passing_failure
from pipeline.serving.guard import (
    DRAIN_SECONDS,
    MARK,
    STOP_SECONDS,
    GuardSpec,
    marked_processes,
    remove_shm,
    run_clean_up,
    start_guard,
)
from pipeline.serving.installation import prepare_backends, server_environment, usable_installation
from pipeline.serving.log import LOG, keep_previous, was_stopped, write_end
from pipeline.serving.ports import choose_ports

STATE, SPEC, LOCK, BACKENDS = "server.json", "guard.json", ".lock", "backends"
# Free ports are not reserved, and Triton itself fails to start now and then: see `passing_failure`.
_ATTEMPTS = 3


class ServerState(Frozen):
    """What is known of a running server; lies in its run folder."""

    server_id: str = Field(description="Marks its processes and names its shared memory.")
    guard_pid: int
    host: str
    http_port: int
    grpc_port: int
    metrics_port: int
    repository: str
    model: str
    profile: str
    started: float = Field(description="Seconds since the epoch.")
    clean_up: tuple[str, ...] = Field((), description="Command that removes its container, if it runs in one.")

    @property
    def http_url(self) -> str:
        return f"http://{self._reachable}:{self.http_port}"

    @property
    def grpc_url(self) -> str:
        return f"{self._reachable}:{self.grpc_port}"

    @property
    def metrics_url(self) -> str:
        return f"http://{self._reachable}:{self.metrics_port}/metrics"

    @property
    def _reachable(self) -> str:
        return "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host


class RunningServer:
    """Handle of a server that this process started."""

    def __init__(self, state: ServerState, run_dir: Path, guard: subprocess.Popen[bytes]) -> None:
        self.state = state
        self.run_dir = run_dir
        self._guard = guard

    @property
    def log_path(self) -> Path:
        return self.run_dir / LOG

    def wait(self) -> int:
        """Block until the server has ended; its exit code."""
        return self._guard.wait()

    def poll(self) -> int | None:
        """Exit code if the server has ended, else None."""
        return self._guard.poll()

    def stop(self) -> None:
        """End the server and everything that belongs to it. Twice does nothing."""
        if self._guard.poll() is None:
            self._guard.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._guard.wait(STOP_SECONDS + 10)
        if self._guard.stdin is not None:
            self._guard.stdin.close()
        _sweep(self.state, self.run_dir)


def start_server(
    repository: Path,
    run_dir: Path,
    server: ServerConfig,
    *,
    places: Places,
    model: str,
    profile: str,
    make_command: MakeCommand | None = None,
    verbose_log: Path | None = None,
    detach: bool = False,
    note: Note = lambda text: None,
) -> RunningServer:
    """Start tritonserver on a model repository and wait until all models are ready.

    places: the server's too. model, profile: for the record. make_command: what to run, if not one tritonserver of this
    machine. verbose_log: Triton's log of every step, if wanted of that one. detach: let it outlive this process.
    note: told what is being waited for. Raises ServerError, with the reason from the log, if it does not get ready."""
    if make_command is None:
        make_command = _local(repository, run_dir, server, places, verbose_log, note)
    run_dir.mkdir(parents=True, exist_ok=True)
    with _locked(run_dir):
        require_none(run_dir)
        if (kept := keep_previous(run_dir)) is not None:
            note(f"the previous server ended by itself; its log is kept as {kept}")
        (run_dir / VERBOSE_LOG).unlink(missing_ok=True)
        for attempt in range(_ATTEMPTS):
            ports = choose_ports(server)
            server_id = f"la{secrets.token_hex(6)}"
            command = make_command(ports, server_id)
            spec = GuardSpec(
                command.argv,
                {**command.environment, MARK: server_id},
                str(run_dir / LOG),
                str(run_dir / STATE),
                server_id,
                not detach,
                command.clean_up,
                command.links,
            )
            guard = start_guard(spec, run_dir / SPEC, places.home)
            state = ServerState(
                server_id=server_id,
                guard_pid=guard.pid,
                host=server.host,
                http_port=ports.http,
                grpc_port=ports.grpc,
                metrics_port=ports.metrics,
                repository=str(repository),
                model=model,
                profile=profile,
                started=time.time(),
                clean_up=tuple(command.clean_up),
            )
            write_whole(run_dir / STATE, state.model_dump_json(indent=2) + "\n")
            running_server = RunningServer(state, run_dir, guard)
            try:
                _wait_until_ready(running_server, server.startup_timeout_s, note)
            except BaseException as error:
                stopped = was_stopped(run_dir / LOG)  # by somebody else
                running_server.stop()
                free_ports = 0 in (server.http_port, server.grpc_port, server.metrics_port)
                if isinstance(error, ServerError) and not stopped:
                    if attempt + 1 < _ATTEMPTS and (reason := passing_failure(run_dir / LOG, free_ports)):
                        note(f"{reason}; starting again")
                        continue
                    write_end(run_dir / LOG, False, "it did not get ready")
                raise error
            return running_server
    raise AssertionError("the last attempt returns or raises")


def require_none(run_dir: Path) -> None:
    """Raises ServerError if a server runs from run_dir."""
    if (running := find_server(run_dir)) is not None:
        raise ServerError(
            f"A server for {running.model} ({running.profile}) already runs from {run_dir} on {running.http_url}. "
            "Stop it with `lookahead stop`, or give it another profile with `lookahead switch`."
        )


def require_server(run_dir: Path, takes_url: bool = False) -> ServerState:
    """The server that runs from run_dir. Raises ServerError if there is none. takes_url: another can be named."""
    if (running := find_server(run_dir)) is None:
        other = ", or name one with --url" if takes_url else ""
        raise ServerError(f"No server is running. Start one with `lookahead serve --background`{other}.")
    return running


def find_server(run_dir: Path) -> ServerState | None:
    """The server that runs from run_dir. What a killed one left behind is removed on the way."""
    path = run_dir / STATE
    try:
        state = ServerState.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError:
        path.unlink(missing_ok=True)  # of another version of this program
        return None
    if _is_ours(state.guard_pid, state.server_id):
        return state
    _sweep(state, run_dir)
    return None


def stop_server(run_dir: Path, drain: bool = False) -> ServerState | None:
    """Stop the server that runs from run_dir and wait for its end. Returns what was stopped, if anything was.

    drain: new requests are refused, and running ones may take up to DRAIN_SECONDS to finish before it ends."""
    state = find_server(run_dir)
    if state is None:
        return None
    with ExitStack() as stack, suppress(psutil.NoSuchProcess):
        guard = psutil.Process(state.guard_pid)
        if drain:
            stack.enter_context(gate.closed(Path(state.repository), DRAIN_SECONDS))
        # Requests to other models are single calls, which Triton itself lets finish.
        guard.send_signal(signal.SIGUSR1 if drain else signal.SIGTERM)
        with suppress(psutil.TimeoutExpired):
            guard.wait((DRAIN_SECONDS if drain else STOP_SECONDS) + 10)
    _sweep(state, run_dir)
    return state


def is_ready(state: ServerState) -> bool:
    """Whether all models answer."""
    try:  # of this machine, so without the environment's proxy
        return httpx.get(f"{state.http_url}/v2/health/ready", timeout=2.0, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def _local(
    repository: Path, run_dir: Path, server: ServerConfig, places: Places, verbose_log: Path | None, note: Note
) -> MakeCommand:
    installation = usable_installation(places)
    note(f"tritonserver: {installation.executable} ({installation.origin})")
    run_dir.mkdir(parents=True, exist_ok=True)
    backends = prepare_backends(installation, run_dir / BACKENDS)
    environment = server_environment(places, installation)
    return single_process(installation, backends, repository, server.host, environment, verbose_log)


def _wait_until_ready(server: RunningServer, timeout_s: float, note: Note) -> None:
    deadline = time.monotonic() + timeout_s
    told = time.monotonic()
    while not is_ready(server.state):
        if server.poll() is not None:
            raise ServerError(explain_failure(server.log_path))
        if time.monotonic() > deadline:
            raise ServerError(
                f"The server was not ready after {timeout_s:.0f} s (server.startup_timeout_s). End of "
                f"{server.log_path}:\n" + log_tail(server.log_path)
            )
        if time.monotonic() - told > 5:
            told = time.monotonic()
            note("still loading the models")
        time.sleep(0.1)


def _is_ours(pid: int, server_id: str) -> bool:
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == server_id
    except psutil.Error:
        return False


def _sweep(state: ServerState, run_dir: Path) -> None:
    """Kill what a server left running, remove its shared memory, its container and its state file."""
    left = []
    for pid in marked_processes(state.server_id):
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            process.kill()
            left.append(process)
    psutil.wait_procs(left, timeout=5)
    run_clean_up(state.clean_up)
    remove_shm(state.server_id)
    path = run_dir / STATE
    with suppress(FileNotFoundError):
        if json.loads(path.read_text(encoding="utf-8")).get("server_id") == state.server_id:
            path.unlink()


@contextmanager
def _locked(run_dir: Path) -> Iterator[None]:
    with (run_dir / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ServerError(f"Another server is being started from {run_dir}; wait for it, or stop it.") from error
        yield
