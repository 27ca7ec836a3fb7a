"""The fleet of this machine: Triton servers, a Dynamo worker for each, and the OpenAI front end."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pipeline.config.folders import Folders
from pipeline.config.schema import ResolvedConfig
from pipeline.dynamo.membership import compare_with_members, membership_of
from pipeline.dynamo.model_card import prompt_prefix, write_card
from pipeline.dynamo.own_discovery import create_discovery, remove_discovery
from pipeline.dynamo.services import (
    FRONT_END,
    WORKER,
    check_tool_call_parser,
    front_end_service,
    require_dynamo,
    worker_service,
)
from pipeline.engine.backend import Note
from pipeline.errors import ServerError
from pipeline.server.discovery import FILE_KV, check_etcd, has_other_machines
from pipeline.server.failure import transient_failure
from pipeline.server.gateway import OPENAI, set_replicas
from pipeline.server.ports import LOOPBACK, choose_ports
from pipeline.server.server import ATTEMPTS, GATEWAY_LEAD_S, RunningServer, start_lock, stop_server
from pipeline.server.service import (
    RunningService,
    find_service,
    find_services,
    start_service,
    stop_service,
    wait_until_ready,
)
from pipeline.server.startup import PreparedServer, launch
from pipeline.server.state import (
    GATEWAY,
    ServerState,
    find_own,
    find_server,
    reachable,
    replica_dir,
)

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

    def wait(self, note: Note) -> RunningServer | RunningService:
        """Block until the fleet cannot serve any more, and return the process whose end is the reason. note: called for
        each other process that ends.

        The fleet needs its gateway, its front end, one server and one worker. A worker whose server has ended uses the
        others."""
        gateway = [server.gateway for server in self.servers if server.gateway is not None]
        groups = (self.servers, gateway, self._front_ends, self._workers)
        ended: list[RunningServer | RunningService] = []
        while True:
            members = [each for group in groups for each in group if each not in ended]
            for running in [each for each in members if each.poll() is not None]:
                ended.append(running)
                if any(group and all(each in ended for each in group) for group in groups):
                    # The guard of the last server ends the gateway first, then itself.
                    last = [each for each in self.servers if running in gateway and each not in ended]
                    return next((server for server in last if server.has_triton_ended(GATEWAY_LEAD_S)), running)
                note(f"{running.name} ended and does not start again; the others still serve. Log: {running.log_path}")
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """Stop all processes: the front end, then all workers, then all servers. A second call does nothing."""
        for group in (self._front_ends, self._workers, self.servers):
            for running in group:  # they end at the same time
                running.guard.terminate()
            for running in group:
                running.stop()
        for server in self.servers[:1]:
            if find_own(server.run_dir) is None:  # after a second switch, other servers run from there
                remove_discovery(server.run_dir)

    @property
    def _front_ends(self) -> list[RunningService]:
        return [service for service in self.services if service.name == FRONT_END]

    @property
    def _workers(self) -> list[RunningService]:
        return [service for service in self.services if service.name != FRONT_END]

    @property
    def front_end_port(self) -> int | None:
        """Port of the OpenAI front end; None if the fleet has none."""
        return next((service.state.ports["http"] for service in self._front_ends), None)

    @property
    def running(self) -> list[RunningServer | RunningService]:
        """All processes in the order of their start."""
        return [*self.servers, *self.services]


def start_fleet(
    served: PreparedServer,
    folders: Folders,
    run_dir: Path,
    *,
    join: bool = False,
    beside: bool = False,
    compare: bool = True,
    detach: bool = False,
    verbose: bool = False,
    note: Note = lambda text: None,
) -> Fleet:
    """Start the processes that the server section of the config requires, and wait until all are ready. Raises
    ServerError if one does not start, or if the machine must not join the fleet.

    join: start no front end, because the one of another machine finds the workers. beside: use free ports and start no
    gateway, because the running gateway will switch to the new servers. compare: compare the engine with the
    fleet's. detach: let the processes outlive this one once all are ready."""
    if beside:
        served = _on_free_ports(served)
    start_server = partial(launch, folders=folders, fleet_dir=run_dir, verbose=verbose, note=note)
    with start_lock(run_dir):
        if served.resolved.profile.server.openai:
            fleet = _start_with_openai(served, run_dir, join, beside, compare, start_server, note)
        else:
            fleet = Fleet([start_server(served, folder=run_dir, with_gateway=not beside)], [])
    for each in fleet.running if detach else ():
        each.release()
    return fleet


def _start_with_openai(
    served: PreparedServer,
    run_dir: Path,
    join: bool,
    beside: bool,
    compare: bool,
    start_server: Callable[..., RunningServer],
    note: Note,
) -> Fleet:
    """As `start_fleet`, with the OpenAI API. start_server: `launch` with the options that all servers have."""
    require_dynamo()
    server, card = served.resolved.profile.server, write_card(served.artifact, run_dir)
    membership, prefix = membership_of(served.artifact, card), prompt_prefix(card)
    if compare:
        compare_with_members(server, membership, join, note)
    for attempt in range(ATTEMPTS):
        fleet = Fleet([], [])
        with ExitStack() as stack:
            if not has_other_machines(server):
                create_discovery(run_dir)
                stack.callback(remove_discovery, run_dir)
            stack.callback(fleet.stop)
            first = start_server(served, folder=run_dir, with_openai=not join, with_gateway=not beside)
            fleet.servers.append(first)
            for number in range(2, server.replicas + 1):
                folder = replica_dir(run_dir, number)
                fleet.servers.append(start_server(_on_free_ports(served), folder=folder, with_gateway=False))
            states = [running.state for running in fleet.servers]
            if server.gateway.enabled and not beside and len(states) > 1:
                set_replicas(run_dir, states)
            services = [
                worker_service(number, served.resolved, states, card, run_dir, membership, not join, prefix)
                for number in range(1, server.replicas + 1)
            ]
            if not join:
                host, port = LOOPBACK if server.gateway.enabled else server.host, first.openai.front_end
                services.append(front_end_service(served.resolved, run_dir, host, port, membership, services))
            for service in services:
                fleet.services.append(start_service(service, run_dir))
            try:
                wait_until_ready(fleet.services, note)
            except ServerError:
                logs = [service.log_path for service in fleet.services]
                if attempt + 1 == ATTEMPTS or (reason := transient_failure(logs)) is None:
                    raise
                note(f"{reason}; starting again")
                continue
            stack.pop_all()
            return fleet
    raise AssertionError("the last attempt returns or raises")


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
        if server.discovery == "etcd":
            check_etcd()
        if not join:
            choose_ports(server, with_openai=True)


def without_openai(resolved: ResolvedConfig) -> ResolvedConfig:
    """The same config without the OpenAI API, and so with one server."""
    return resolved.with_settings("server", openai=False, replicas=1)


def find_ended(run_dir: Path, replicas: int, has_gateway: bool = False) -> list[str]:
    """Names of the processes of a fleet that do not run. replicas: number of servers at its start. has_gateway: whether
    it started with a gateway."""
    numbers = range(1, replicas + 1)
    gateway = find_service(run_dir, GATEWAY)
    needed = [GATEWAY] if has_gateway else []
    if gateway is not None and OPENAI in gateway.ports:
        needed.append(FRONT_END)
    servers = [f"replica {number}" for number in numbers if find_own(replica_dir(run_dir, number)) is None]
    services = [*needed, *(f"{WORKER}-{number}" for number in numbers)]
    return servers + [name for name in services if find_service(run_dir, name) is None]


def openai_url(run_dir: Path) -> str | None:
    """Base URL of the OpenAI API of a run folder; None if none runs, or if its gateway has ended."""
    front_end, gateway = (find_service(run_dir, name) for name in (FRONT_END, GATEWAY))
    server = find_server(run_dir)
    if front_end is None or (gateway is None and server is not None and server.gateway_id):
        return None
    host, port = front_end.host, front_end.ports["http"]
    if gateway is not None and OPENAI in gateway.ports:
        host, port = gateway.host, gateway.ports[OPENAI]
    return f"http://{reachable(host)}:{port}/v1"


def stop_fleet(run_dir: Path, drain: bool = False) -> ServerState | None:
    """Stop all processes of a run folder. drain: let running requests finish first. Returns the state of a Triton
    server that was stopped; None if none ran."""
    stop_service(run_dir, FRONT_END, drain=drain)
    workers = [state.name for state in find_services(run_dir) if state.name != GATEWAY]
    stop_service(run_dir, *workers, drain=drain)
    # The gateway ends with the last server.
    stopped = stop_server(run_dir, *sorted(run_dir.glob("replica-*")), drain=drain)
    remove_discovery(run_dir)
    return stopped


def _on_free_ports(served: PreparedServer) -> PreparedServer:
    ports = dict.fromkeys(("http_port", "grpc_port", "metrics_port", "openai_port"), 0)
    return replace(served, resolved=served.resolved.with_settings("server", **ports))
