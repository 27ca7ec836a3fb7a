"""Processes beside Triton: a service is a command, its ports, and a readiness check.

Each service runs under its own guard (see `guard`) in its own folder below the run folder of the server. The folder
holds its state file and its log. A later command finds the services by these folders.
"""

from __future__ import annotations

import secrets
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from pipeline.engine.backend import Note
from pipeline.errors import ServerError
from pipeline.files import end_of_log, write_atomically
from pipeline.server.guard import READY_FILE, GuardSpec, release_guard, start_guard, stop_guard
from pipeline.server.log import LOG, keep_previous, was_stopped
from pipeline.server.processes import MARK
from pipeline.server.state import (
    SERVICE_STATE,
    SERVICES,
    GuardedState,
    end_guards,
    end_leftovers,
    is_guard,
    listens,
    read_state,
    service_dir,
)

_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Service:
    """A process to run beside the server.

    name: unique in a run folder. argv, environment: command and complete environment. host, ports: its addresses;
    ports by purpose ("http", "metrics"). is_ready: readiness check, called until it returns true. startup_timeout_s:
    time limit until it is ready. max_restarts: limit of restarts after that. leftovers_path, watched_url,
    watched_needs, waits_for: see `GuardSpec`.
    """

    name: str
    argv: Sequence[str]
    environment: Mapping[str, str]
    ports: Mapping[str, int]
    is_ready: Callable[[], bool]
    host: str = "127.0.0.1"
    startup_timeout_s: float = 60.0
    max_restarts: int = 0
    leftovers_path: str = ""
    watched_url: str = ""
    watched_needs: Sequence[Sequence[str]] = ()
    waits_for: Sequence[str] = ()


class ServiceState(GuardedState):
    """State of a running service."""

    name: str
    ports: dict[str, int] = Field(description="Ports by purpose.")
    ends_with: tuple[str, ...] = Field((), description="Ids of servers. The service ends with the last one.")


@dataclass(slots=True, eq=False)
class RunningService:
    """Handle of a service that this process started."""

    service: Service
    state: ServiceState
    folder: Path
    guard: subprocess.Popen[bytes]

    @property
    def name(self) -> str:
        return self.state.name

    @property
    def log_path(self) -> Path:
        return self.folder / LOG

    def mark_ready(self) -> None:
        """Allow the guard to restart the service from now on."""
        (self.folder / READY_FILE).touch()

    def release(self) -> None:
        """Let the service outlive this process."""
        release_guard(self.guard)

    def poll(self) -> int | None:
        return self.guard.poll()

    def stop(self) -> None:
        """Stop the service and all its processes. A second call does nothing."""
        stop_guard(self.guard)
        end_leftovers(self.state.server_id, self.folder / SERVICE_STATE)


def start_service(service: Service, run_dir: Path, *, ends_with: tuple[str, ...] = ()) -> RunningService:
    """Start a service and return at once; `wait_until_ready` waits for it.

    run_dir: run folder of its server. ends_with: ids of servers; the service ends with the last one. Raises ServerError
    if a service with that name already runs.
    """
    folder = service_dir(run_dir, service.name)
    folder.mkdir(parents=True, exist_ok=True)
    if find_service(run_dir, service.name) is not None:
        raise ServerError(f"The service {service.name} already runs from {folder}. Stop it with `lookahead stop`.")
    keep_previous(folder)
    server_id = f"la{secrets.token_hex(6)}"
    environment = {**service.environment, MARK: server_id}
    (folder / READY_FILE).unlink(missing_ok=True)
    spec = GuardSpec(
        service.argv,
        environment,
        str(folder),
        SERVICE_STATE,
        server_id,
        max_restarts=service.max_restarts,
        leftovers_path=service.leftovers_path,
        watched_url=service.watched_url,
        watched_needs=service.watched_needs,
        waits_for=service.waits_for,
    )
    guard = start_guard(spec)
    state = ServiceState(
        name=service.name,
        server_id=server_id,
        guard_pid=guard.pid,
        host=service.host,
        ports=dict(service.ports),
        started=time.time(),
        ends_with=ends_with,
    )
    running = RunningService(service, state, folder, guard)
    try:
        write_atomically(folder / SERVICE_STATE, state.model_dump_json(indent=2) + "\n")
    except BaseException:  # a full disk; without its state file no command would find the service
        running.stop()
        raise
    return running


def wait_until_ready(services: Iterable[RunningService], note: Note = lambda text: None) -> None:
    """Wait until all services are ready. Raises ServerError, with the end of the log, if a service ends or is not ready
    in time."""
    for running in services:
        service, noted = running.service, time.monotonic()
        deadline = noted + service.startup_timeout_s
        while not (service.is_ready() and listens(running.state.server_id, service.ports.values())):
            if running.poll() is not None:
                if was_stopped(running.log_path):
                    raise ServerError(f"The service {service.name} was stopped before it was ready.")
                end = end_of_log(running.log_path)
                raise ServerError(f"The service {service.name} ended before it was ready. {end}")
            if time.monotonic() > deadline:
                end, limit_s = end_of_log(running.log_path), service.startup_timeout_s
                raise ServerError(
                    f"The service {service.name} was not ready after {limit_s:.0f} s; if it needs longer, raise "
                    f"server.startup_timeout_s. {end}"
                )
            if time.monotonic() - noted > 5:
                noted = time.monotonic()
                note(f"waiting for {service.name}")
            time.sleep(_POLL_S)
        running.mark_ready()


def find_service(run_dir: Path, name: str) -> ServiceState | None:
    """State of a service of a run folder; None if it does not run. Removes leftovers of a killed service."""
    path = service_dir(run_dir, name) / SERVICE_STATE
    state = read_state(path, ServiceState)
    if state is None or is_guard(state.guard_pid, state.server_id):
        return state
    end_leftovers(state.server_id, path)
    return None


def find_services(run_dir: Path) -> list[ServiceState]:
    """States of the running services of a run folder, sorted by name."""
    names = sorted(folder.name for folder in (run_dir / SERVICES).glob("*"))
    return [state for name in names if (state := find_service(run_dir, name)) is not None]


def stop_service(run_dir: Path, *names: str, drain: bool = False) -> ServiceState | None:
    """Stop services at the same time and wait for their end. Returns the state of one; None if none ran. drain: let
    them finish their requests first, for up to DRAIN_SECONDS instead of STOP_SECONDS."""
    states = {name: state for name in names if (state := find_service(run_dir, name)) is not None}
    end_guards({state.guard_pid: drain for state in states.values()})
    for name, state in states.items():
        end_leftovers(state.server_id, service_dir(run_dir, name) / SERVICE_STATE)
    return next(iter(states.values()), None)
