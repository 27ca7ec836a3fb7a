"""All servers of this machine: Triton servers, a worker for each, and the OpenAI API in front of them."""

from __future__ import annotations

import shutil
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.config.places import CODE, Places
from pipeline.config.schema import ResolvedConfig, ServerConfig
from pipeline.dynamo.card import write_card
from pipeline.dynamo.services import DISCOVERY, FRONT_END, front_end_service, require_dynamo, worker_service
from pipeline.engine.backend import Note
from pipeline.server.ports import bind_ports
from pipeline.server.road import Served, launch
from pipeline.server.server import RunningServer, stop_server
from pipeline.server.service import (
    SERVICES,
    RunningService,
    Service,
    find_service,
    find_services,
    start_service,
    stop_service,
    wait_until_ready,
)
from pipeline.server.state import ServerState, find_server, reachable

_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Fleet:
    """What this process started. servers: the first is the one that `lookahead status` names."""

    servers: list[RunningServer]
    services: list[RunningService]

    @property
    def state(self) -> ServerState:
        return self.servers[0].state

    def wait(self) -> RunningServer | RunningService:
        """Block until one of the processes has ended; the one that did."""
        while True:
            for running in self._running():
                if running.poll() is not None:
                    return running
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """End all of them, the front end first. Twice does nothing."""
        for running in reversed(self._running()):
            running.stop()

    def _running(self) -> list[RunningServer | RunningService]:
        return [*self.servers, *self.services]


def start_fleet(
    served: Served,
    places: Places,
    run_dir: Path,
    *,
    detach: bool = False,
    verbose: bool = False,
    note: Note = lambda text: None,
) -> Fleet:
    """Start what the server section of the config asks for, and wait until all of it is ready. Raises ServerError."""
    server = served.resolved.profile.server
    if not server.openai:
        return Fleet([launch(served, places, run_dir, detach=detach, verbose=verbose, note=note)], [])
    require_dynamo()
    port = _openai_port(server)
    fleet = Fleet([], [])
    with ExitStack() as stack:
        stack.callback(fleet.stop)
        run_dir.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(run_dir / DISCOVERY, ignore_errors=True)  # of servers that were killed
        card = write_card(served.artifact, run_dir)
        workers = []
        for number in range(1, server.replicas + 1):
            replica = served if number == 1 else _on_free_ports(served)
            folder = replica_dir(run_dir, number)
            running = launch(replica, places, folder, detach=detach, verbose=verbose, note=note)
            fleet.servers.append(running)
            worker = worker_service(number, served.resolved, running.state, card, run_dir)
            workers.append(_start(fleet, worker, run_dir, detach))
        front_end = _start(fleet, front_end_service(served.resolved, run_dir, server.host, port), run_dir, detach)
        wait_until_ready([*workers, front_end], note)
        stack.pop_all()
    return fleet


def check_fleet(resolved: ResolvedConfig) -> None:
    """Raises ServerError for what would prevent a start; asked before an engine is built."""
    server = resolved.profile.server
    if server.openai:
        require_dynamo()
        _openai_port(server)


def without_openai(resolved: ResolvedConfig) -> ResolvedConfig:
    """The same config with Triton alone."""
    return with_server(resolved, openai=False)


def with_server(resolved: ResolvedConfig, **settings: object) -> ResolvedConfig:
    """A config with other settings in its server section."""
    profile = resolved.profile
    profile = profile.model_copy(update={"server": profile.server.model_copy(update=settings)})
    return resolved.model_copy(update={"profile": profile})


def _openai_port(server: ServerConfig) -> int:
    return bind_ports(server.host, {"openai_port": server.openai_port})["openai_port"]


def replica_dir(run_dir: Path, number: int) -> Path:
    """Run folder of a Triton server. number: from 1 on; the first has the run folder itself."""
    return run_dir if number == 1 else run_dir / f"replica-{number}"


def find_replicas(run_dir: Path) -> list[ServerState]:
    """The Triton servers that run, the first one first."""
    folders = (run_dir, *sorted(run_dir.glob("replica-*")))
    return [state for folder in folders if (state := find_server(folder)) is not None]


def openai_url(run_dir: Path) -> str | None:
    """Base URL of the OpenAI API that runs from a run folder; None if there is none."""
    state = find_service(run_dir / SERVICES / FRONT_END)
    return None if state is None else f"http://{reachable(state.host)}:{state.ports['http']}/v1"


def stop_fleet(run_dir: Path, drain: bool = False) -> ServerState | None:
    """Stop everything that runs from a run folder. Returns the first Triton server that was stopped, if any.

    drain: the front end first lets running requests finish."""
    stop_service(run_dir, FRONT_END, drain)
    for state in find_services(run_dir):
        stop_service(run_dir, state.name)
    stopped = [stop_server(folder, drain) for folder in (run_dir, *sorted(run_dir.glob("replica-*")))]
    return next((state for state in stopped if state is not None), None)


def _start(fleet: Fleet, service: Service, run_dir: Path, detach: bool) -> RunningService:
    running = start_service(service, run_dir, CODE, detach=detach)
    fleet.services.append(running)
    return running


def _on_free_ports(served: Served) -> Served:
    return replace(served, resolved=with_server(served.resolved, http_port=0, grpc_port=0, metrics_port=0))
