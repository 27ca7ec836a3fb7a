"""The fleet of this machine: Triton servers, a Dynamo worker for each, and the OpenAI front end."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from pipeline.config.places import CODE, Places
from pipeline.config.schema import ResolvedConfig, ServerConfig
from pipeline.dynamo.card import write_card
from pipeline.dynamo.services import (
    DISCOVERY,
    FRONT_END,
    WORKER,
    check_tool_call_parser,
    front_end_service,
    require_dynamo,
    worker_service,
)
from pipeline.dynamo.spec import FILE_KV
from pipeline.engine.backend import Note
from pipeline.errors import ServerError
from pipeline.server.gateway import OPENAI, OpenAIPorts
from pipeline.server.ports import LOOPBACK, bind_ports
from pipeline.server.server import RunningServer, stop_server
from pipeline.server.service import (
    RunningService,
    Service,
    find_service,
    find_services,
    start_service,
    stop_service,
    wait_until_ready,
)
from pipeline.server.startup import PreparedServer, launch
from pipeline.server.state import GATEWAY, SERVICES, ServerState, find_server, reachable

_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Fleet:
    """Processes that this process has started. servers: Triton servers in the order of their numbers. services: workers
    and front end."""

    servers: list[RunningServer]
    services: list[RunningService]

    @property
    def state(self) -> ServerState:
        """State of the first Triton server."""
        return self.servers[0].state

    def wait(self) -> RunningServer | RunningService:
        """Block until a process has ended, and return it."""
        while True:
            for running in self.running:
                if running.poll() is not None:
                    return running
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """Stop all processes, the front end first. A second call does nothing."""
        for running in reversed(self.running):
            running.stop()

    @property
    def front_end_port(self) -> int | None:
        """Port of the OpenAI front end; None if the fleet has none."""
        return next((service.state.ports["http"] for service in self.services if service.name == FRONT_END), None)

    @property
    def running(self) -> list[RunningServer | RunningService]:
        """All processes in the order of their start."""
        return [*self.servers, *self.services]


def start_fleet(
    served: PreparedServer,
    places: Places,
    run_dir: Path,
    *,
    join: bool = False,
    beside: bool = False,
    detach: bool = False,
    verbose: bool = False,
    note: Note = lambda text: None,
) -> Fleet:
    """Start the processes that the server section of the config requires, and wait until all are ready. Raises
    ServerError if one does not start.

    join: start no front end, because the one of another machine finds the workers. beside: use free ports and start no
    gateway, because the running gateway will switch to the new servers."""
    server = served.resolved.profile.server
    if beside:
        served = _on_free_ports(served)
    if not server.openai:
        alone = launch(served, places, run_dir, with_gateway=not beside, detach=detach, verbose=verbose, note=note)
        return Fleet([alone], [])
    require_dynamo()
    openai = None if join else _openai_ports(served.resolved.profile.server)
    fleet = Fleet([], [])
    with ExitStack() as stack:
        stack.callback(fleet.stop)
        run_dir.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(run_dir / DISCOVERY, ignore_errors=True)  # entries of killed servers
        card = write_card(served.artifact, run_dir)
        workers = []
        for number in range(1, server.replicas + 1):
            first = number == 1
            running = launch(
                served if first else _on_free_ports(served),
                places,
                replica_dir(run_dir, number),
                openai=openai,
                with_gateway=first and not beside,
                detach=detach,
                verbose=verbose,
                note=note,
            )
            fleet.servers.append(running)
        states = [running.state for running in fleet.servers]
        for number in range(1, server.replicas + 1):
            worker = worker_service(number, served.resolved, states, card, run_dir)
            workers.append(_start(fleet, worker, run_dir, detach))
        if openai is not None:
            host = LOOPBACK if server.gateway.enabled else server.host
            front_end = front_end_service(served.resolved, run_dir, host, openai.front_end)
            workers.append(_start(fleet, front_end, run_dir, detach))
        wait_until_ready(workers, note)
        stack.pop_all()
    return fleet


def check_fleet(resolved: ResolvedConfig, join: bool = False) -> None:
    """Raise ServerError if the config rules out a start. To be called before an engine is built."""
    server = resolved.profile.server
    if join and not server.openai:
        raise ServerError(
            "--join starts a worker for an OpenAI API, and server.openai is false. Leave one of them out."
        )
    if join and server.discovery == "file" and FILE_KV not in os.environ:
        raise ServerError(
            f"--join has no fleet to join: set server.discovery to etcd or kubernetes, or {FILE_KV} to the folder that "
            "the other machines use."
        )
    if server.openai:
        require_dynamo()
        check_tool_call_parser(resolved.model)
    if server.openai and not join:
        _openai_ports(server)


def without_openai(resolved: ResolvedConfig) -> ResolvedConfig:
    """The same config without the OpenAI API."""
    return with_server(resolved, openai=False)


def with_server(resolved: ResolvedConfig, **settings: object) -> ResolvedConfig:
    """The same config with other settings in its server section."""
    profile = resolved.profile
    profile = profile.model_copy(update={"server": profile.server.model_copy(update=settings)})
    return resolved.model_copy(update={"profile": profile})


def _openai_ports(server: ServerConfig) -> OpenAIPorts:
    """Check and reserve the ports of the OpenAI API. Without a gateway the front end itself uses the public port."""
    asked = {"openai_port": server.openai_port} | ({"inner port": 0} if server.gateway.enabled else {})
    ports = list(bind_ports(server.host, asked).values())
    return OpenAIPorts(ports[0], ports[-1])


def replica_dir(run_dir: Path, number: int) -> Path:
    """Run folder of a Triton server. number: counted from 1; the first server uses run_dir itself."""
    return run_dir if number == 1 else run_dir / f"replica-{number}"


def find_replicas(run_dir: Path) -> list[ServerState]:
    """States of the running Triton servers in the order of their numbers."""
    folders = (run_dir, *sorted(run_dir.glob("replica-*")))
    return [state for folder in folders if (state := find_server(folder)) is not None]


def openai_url(run_dir: Path) -> str | None:
    """Base URL of the OpenAI API of a run folder; None if none runs."""
    front_end, gateway = (find_service(run_dir / SERVICES / name) for name in (FRONT_END, GATEWAY))
    if front_end is None:
        return None
    host, port = front_end.host, front_end.ports["http"]
    if gateway is not None and OPENAI in gateway.ports:
        host, port = gateway.host, gateway.ports[OPENAI]
    return f"http://{reachable(host)}:{port}/v1"


def as_running(served: PreparedServer, run_dir: Path) -> PreparedServer:
    """The same server with the OpenAI port and the number of replicas of the running one, for a switch of the profile.
    Raises ServerError if the running server has joined another machine's fleet."""
    url, replicas = openai_url(run_dir), len(find_replicas(run_dir))
    if url is None and any(service.name.startswith(WORKER) for service in find_services(run_dir)):
        raise ServerError(
            "This server has joined the fleet of another machine. To change its profile, run `lookahead stop --drain` "
            "and `lookahead serve --join`."
        )
    if url is None:
        return replace(served, resolved=without_openai(served.resolved))
    port = urlsplit(url).port
    return replace(served, resolved=with_server(served.resolved, openai=True, openai_port=port, replicas=replicas))


def stop_fleet(run_dir: Path, drain: bool = False) -> ServerState | None:
    """Stop all processes of a run folder. drain: let running requests finish first. Returns the state of the first
    Triton server that was stopped; None if none ran."""
    stop_service(run_dir, FRONT_END, drain)
    for state in find_services(run_dir):
        if state.name != GATEWAY:  # the gateway ends with its Triton server
            stop_service(run_dir, state.name, drain)
    stopped = [stop_server(folder, drain) for folder in (run_dir, *sorted(run_dir.glob("replica-*")))]
    return next((state for state in stopped if state is not None), None)


def _start(fleet: Fleet, service: Service, run_dir: Path, detach: bool) -> RunningService:
    running = start_service(service, run_dir, CODE, detach=detach)
    fleet.services.append(running)
    return running


def _on_free_ports(served: PreparedServer) -> PreparedServer:
    ports = dict.fromkeys(("http_port", "grpc_port", "metrics_port", "openai_port"), 0)
    return replace(served, resolved=with_server(served.resolved, **ports))
