"""A running tritonserver: start, wait until ready, find again, stop without leftovers.

A *run folder* holds the state file, the log and the prepared backend of one server. One server at a time runs per run
folder. A guard process supervises the server (see `guard`).
"""

from __future__ import annotations

import secrets
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pipeline.config.schema import ResolvedConfig
from pipeline.engine.backend import Note
from pipeline.engine.start_command import MakeCommand
from pipeline.errors import ServerError
from pipeline.files import end_of_log, try_lock, write_atomically
from pipeline.server.failure import cannot_listen, explain_failure, transient_failure
from pipeline.server.gateway import gateway_service, triton_spec
from pipeline.server.guard import DRAIN_SECONDS, READY_FILE, GuardSpec, owner, release_guard, start_guard, stop_guard
from pipeline.server.log import LOG, VERBOSE_LOG, keep_previous, was_stopped, write_end
from pipeline.server.ports import OpenAIPorts, choose_ports
from pipeline.server.processes import MARK, marked_processes
from pipeline.server.service import RunningService, find_service, start_service, stop_service
from pipeline.server.state import (
    GATEWAY,
    STATE,
    ServerState,
    end_guards,
    find_own,
    gateway_state_path,
    has_gateway,
    is_ready,
    listens,
    require_no_server,
    sweep,
)
from pipeline.server.watch import answers
from pipeline.triton_models import drain_lock, handover
from pipeline.triton_models.spans import trace_variables

LOCK, BACKENDS = ".lock", "backends"
# Ports are not reserved, and Triton itself sometimes fails to start: see `transient_failure`.
ATTEMPTS = 5

# Time for tritonserver's guard to end after its gateway.
GATEWAY_LEAD_S = 10.0


@dataclass(slots=True, eq=False)
class RunningServer:
    """Handle of a server that this process started. openai: ports for its OpenAI API."""

    state: ServerState
    run_dir: Path
    guard: subprocess.Popen[bytes]
    openai: OpenAIPorts
    gateway: RunningService | None = None
    name: ClassVar[str] = "The server"

    @property
    def log_path(self) -> Path:
        return self.run_dir / LOG

    def poll(self) -> int | None:
        return self.guard.poll()

    def release(self) -> None:
        """Let the server outlive this process."""
        release_guard(self.guard)

    def has_triton_ended(self, within_s: float = 0.0) -> bool:
        """Whether the guard of tritonserver has ended, or ends within `within_s` seconds."""
        with suppress(subprocess.TimeoutExpired):
            self.guard.wait(within_s)
        return self.guard.poll() is not None

    def stop(self) -> None:
        """Stop the server and all its processes. A second call does nothing."""
        stop_guard(self.guard)
        if self.gateway is not None and has_gateway(self.state, self.run_dir):
            self.gateway.stop()
        sweep(self.state, self.run_dir)


def start_server(
    resolved: ResolvedConfig,
    repository: Path,
    run_dir: Path,
    make_command: MakeCommand,
    *,
    with_openai: bool = False,
    with_gateway: bool = True,
    fleet_dir: Path | None = None,
    note: Note = lambda text: None,
) -> RunningServer:
    """Start tritonserver on a model repository and wait until all models are ready. To be called with the `start_lock`.

    Starts a gateway in front of it unless the server section disables it. with_openai: whether the gateway serves the
    OpenAI API. with_gateway: false for a server that only processes of this machine use. fleet_dir: run folder of the
    gateway of its fleet; default: run_dir. note: called with progress messages. Raises ServerError, with the reason
    from the log, if it does not become ready.
    """
    require_no_server(run_dir)
    if (kept := keep_previous(run_dir)) is not None:
        note(f"the previous server ended unexpectedly; its log is now {kept}")
    handover.prepare_handover(run_dir / handover.HANDOVER)
    if with_gateway:
        stop_service(run_dir, GATEWAY)  # of a server that was killed
    for attempt in range(ATTEMPTS):
        for name in (LOG, VERBOSE_LOG, READY_FILE):
            (run_dir / name).unlink(missing_ok=True)
        server = _begin(resolved, repository, run_dir, make_command, with_openai, with_gateway, fleet_dir or run_dir)
        try:
            write_atomically(run_dir / STATE, server.state.model_dump_json(indent=2) + "\n", private=True)
            _wait_until_ready(server, resolved.profile.server.startup_timeout_s, note)
            (run_dir / READY_FILE).touch()
            if server.gateway is not None:
                server.gateway.mark_ready()
        except BaseException as error:
            stopped = was_stopped(run_dir / LOG)  # by another process
            server.stop()
            if isinstance(error, ServerError) and not stopped:
                logs = [server.log_path, *([] if server.gateway is None else [server.gateway.log_path])]
                if attempt + 1 < ATTEMPTS and (reason := transient_failure(logs)):
                    note(f"{reason}; starting again")
                    continue
                write_end(run_dir / LOG, False, "it did not get ready")
            raise
        handover.forget_handover(run_dir / handover.HANDOVER)
        return server
    raise AssertionError("the last attempt returns or raises")


def stop_server(*run_dirs: Path, drain: bool = False) -> ServerState | None:
    """Stop the servers that run from these folders at the same time, and wait for their end. Returns the state of one;
    None if none ran.

    drain: refuse new requests and let running ones finish, for up to DRAIN_SECONDS.
    """
    states = {folder: state for folder in run_dirs if (state := find_own(folder)) is not None}
    folders = [folder / handover.HANDOVER for folder in states]
    drained = drain_lock.drained(folders, DRAIN_SECONDS) if drain else nullcontext([False] * len(states))
    with drained as have_drained:
        # Requests to other models are single calls, and Triton itself waits for these. It would wait again for requests
        # that have not ended in time.
        end_guards(dict(zip((state.guard_pid for state in states.values()), have_drained, strict=True)))
    for folder in run_dirs:
        if folder not in states:
            _stop_orphan(folder)
    for folder, state in states.items():
        sweep(state, folder)
    return next(iter(states.values()), None)


def _stop_orphan(run_dir: Path) -> None:
    """Stop the gateway of a server that was killed."""
    gateway = find_service(run_dir, GATEWAY)
    if gateway is not None and not any(map(marked_processes, gateway.ends_with)):
        stop_service(run_dir, GATEWAY)


def _begin(
    resolved: ResolvedConfig,
    repository: Path,
    run_dir: Path,
    make_command: MakeCommand,
    with_openai: bool,
    with_gateway: bool,
    fleet_dir: Path,
) -> RunningServer:
    """Start the processes of a server; `_wait_until_ready` waits for them."""
    server = resolved.profile.server
    ports, listening, openai = choose_ports(server, with_openai)
    triton = triton_spec(listening)
    server_id = f"la{secrets.token_hex(6)}"
    command = make_command(listening, server_id)
    gateway = None
    if server.gateway.enabled and with_gateway:
        service = gateway_service(resolved, repository, run_dir, ports, triton, openai if with_openai else None)
        gateway = start_service(service, run_dir, ends_with=(server_id,))
    else:
        ports = listening.ports
    variables = {MARK: server_id, handover.VARIABLE: str(run_dir / handover.HANDOVER)}
    spec = GuardSpec(
        command.argv,
        {**command.environment, **variables, **trace_variables(server.otlp_endpoint)},
        str(run_dir),
        STATE,
        server_id,
        command.clean_up,
        command.links,
        owner=owner(),
        url="" if command.clean_up else f"http://{triton.http}",  # not all processes in a container are visible
        max_restarts=server.max_restarts,
        shared_services=[str(gateway_state_path(fleet_dir))],
    )
    try:
        guard = start_guard(spec)
    except BaseException:
        if gateway is not None:
            gateway.stop()
        raise
    if gateway is not None:  # from now on it ends with this server's guard, or continues in front of another server
        gateway.release()
    state = ServerState(
        server_id=server_id,
        guard_pid=guard.pid,
        host=server.host if gateway is not None else listening.host,
        http_port=ports.http,
        grpc_port=ports.grpc,
        metrics_port=ports.metrics,
        repository=str(repository),
        model=resolved.model.name,
        profile=resolved.profile.name,
        started=time.time(),
        clean_up=tuple(command.clean_up),
        replicas=server.replicas if server.openai else 0,
        side_channel_safe=server.side_channel_safe,
        gateway_id="" if gateway is None else gateway.state.server_id,
        triton=triton,
    )
    return RunningServer(state, run_dir, guard, openai, gateway)


def _wait_until_ready(server: RunningServer, timeout_s: float, note: Note) -> None:
    note("loading the models")
    deadline = time.monotonic() + timeout_s
    while not _serves(server):
        gateway = server.gateway if server.gateway is not None and server.gateway.poll() is not None else None
        # The guard of tritonserver ends the gateway first, then itself. A gateway whose port is in use ends by itself.
        is_alone = gateway is None or transient_failure([gateway.log_path]) is not None
        has_ended = server.has_triton_ended(0.0 if is_alone else GATEWAY_LEAD_S)
        if has_ended or cannot_listen(server.log_path):
            raise ServerError(explain_failure(server.log_path))
        if gateway is not None:
            raise ServerError(f"The gateway ended before the server was ready. {end_of_log(gateway.log_path)}")
        if time.monotonic() > deadline:
            raise ServerError(
                f"The server was not ready after {timeout_s:.0f} s; if it needs longer, raise "
                f"server.startup_timeout_s. {end_of_log(server.log_path)}"
            )
        time.sleep(0.1)


def _serves(server: RunningServer) -> bool:
    """Whether a server is ready, and its processes listen on all of their ports."""
    state, gateway = server.state, server.gateway
    if not is_ready(state) or (gateway and not listens(gateway.state.server_id, gateway.state.ports.values())):
        return False
    triton = state.triton
    if state.clean_up:  # the processes in a container cannot be examined
        return answers(f"http://{triton.metrics}/metrics")  # Triton opens this port last
    addresses = (triton.http, triton.grpc, triton.metrics)
    return listens(state.server_id, [int(address.rpartition(":")[2]) for address in addresses])


@contextmanager
def start_lock(run_dir: Path) -> Iterator[None]:
    """Hold the lock of a start, which changes files of the run folder. Raises ServerError while another process holds
    it, or if a server runs."""
    run_dir.mkdir(parents=True, exist_ok=True)
    with (run_dir / LOCK).open("w") as file:
        if not try_lock(file):
            raise ServerError(f"Another server is being started from {run_dir}; wait for it, or stop it.")
        require_no_server(run_dir)
        yield
