"""A fleet of processes that do nothing: its start, and how long it serves on while some of them end."""

from __future__ import annotations

import math
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from pipeline.config.folders import folders
from pipeline.config.resolution import resolve_config
from pipeline.dynamo import fleet, membership
from pipeline.dynamo.fleet import Fleet, find_ended, start_fleet
from pipeline.dynamo.membership import Member
from pipeline.dynamo.own_discovery import DISCOVERY, create_discovery, remove_discovery
from pipeline.dynamo.running_fleet import as_running
from pipeline.dynamo.services import FRONT_END
from pipeline.errors import ServerError
from pipeline.server.gateway import OPENAI
from pipeline.server.ports import choose_ports
from pipeline.server.server import start_lock
from pipeline.server.startup import PreparedServer
from pipeline.server.state import GATEWAY
from tests.server_states import guarded
from tests.unit.dynamo.requests import FLEET

TAKEN = "port 1 already in use"
FREE = [f"server.{name}_port=0" for name in ("http", "grpc", "metrics", "openai")]


class Process:
    """In place of a server or a service."""

    def __init__(self, name: str, log_path: Path = Path("/none"), openai: Any = None) -> None:
        self.name = name
        self.log_path = log_path
        self.openai = openai
        self.state = None
        self.run_dir = Path("/none")
        self.code: int | None = None
        self.is_stopped = False
        self.gateway: Process | None = None
        self.guard = self
        self.events: list[str] = []
        self.ends_in_s = math.inf

    def poll(self) -> int | None:
        return self.code

    def terminate(self) -> None:
        self.events.append(f"end {self.name}")

    def stop(self) -> None:
        self.is_stopped = True
        self.events.append(f"wait for {self.name}")

    def has_triton_ended(self, within_s: float) -> bool:
        return self.code is not None or self.ends_in_s < within_s


def fleet_of(num_servers: int) -> tuple[Fleet, dict[str, Process]]:
    servers = [Process(f"server-{number}") for number in range(1, num_servers + 1)]
    services = [*(Process(f"worker-{number}") for number in range(1, num_servers + 1)), Process(FRONT_END)]
    servers[0].gateway = gateway = Process(GATEWAY)
    return Fleet(cast(Any, servers), cast(Any, services)), {each.name: each for each in [*servers, *services, gateway]}


@pytest.mark.parametrize(
    ("ends", "last"),
    [
        ([GATEWAY], GATEWAY),
        ([FRONT_END], FRONT_END),
        (["server-1", "server-3", "server-2"], "server-2"),
        (["server-2", "server-3", "worker-1", "worker-3", "worker-2"], "worker-2"),
        (["worker-1", "server-1", GATEWAY], GATEWAY),
        (["worker-3", "server-2", FRONT_END], FRONT_END),
    ],
)
def test_a_fleet_serves_on_while_its_gateway_its_front_end_a_server_and_a_worker_run(ends, last):
    running, processes = fleet_of(3)
    left, notes = list(ends), []

    def end_next(text: str = "") -> None:
        notes.append(text)
        processes[left.pop(0)].code = 1

    end_next()
    assert cast(Any, running.wait(end_next)).name == last
    assert not left
    assert [text.split()[0] for text in notes[1:]] == ends[:-1]


def test_a_fleet_of_one_ends_with_any_of_its_processes():
    for name in (GATEWAY, "server-1", "worker-1", FRONT_END):
        running, processes = fleet_of(1)
        processes[name].code = 0
        assert cast(Any, running.wait(pytest.fail)).name == name
    alone = Process("server")
    alone.code = 0
    assert cast(Any, Fleet([cast(Any, alone)], []).wait(pytest.fail)) is alone


def test_a_server_that_ends_its_gateway_seconds_before_itself_is_the_reason():
    """As on a busy machine."""
    running, processes = fleet_of(1)
    processes[GATEWAY].code, processes["server-1"].ends_in_s = -9, 5.0
    assert cast(Any, running.wait(pytest.fail)) is processes["server-1"]


def test_the_servers_of_a_fleet_end_at_the_same_time():
    running, processes = fleet_of(2)
    events: list[str] = []
    for process in processes.values():
        process.events = events

    running.stop()

    assert events == [
        *(f"end {FRONT_END}", f"wait for {FRONT_END}"),
        *("end worker-1", "end worker-2", "wait for worker-1", "wait for worker-2"),
        *("end server-1", "end server-2", "wait for server-1", "wait for server-2"),
    ]


def test_processes_that_do_not_run_are_named(tmp_path):
    assert find_ended(tmp_path, 2) == ["replica 1", "replica 2", "worker-1", "worker-2"]
    assert find_ended(tmp_path, 0) == []
    assert find_ended(tmp_path, 1, has_gateway=True) == ["replica 1", GATEWAY, "worker-1"]
    with guarded(tmp_path, {GATEWAY: {OPENAI: 1}}):
        assert find_ended(tmp_path, 1, has_gateway=True) == [FRONT_END, "worker-1"]


@pytest.mark.parametrize(
    ("services", "ended"),
    [({FRONT_END: {"http": 7}, "worker-1": {}}, GATEWAY), ({GATEWAY: {OPENAI: 8}, "worker-1": {}}, FRONT_END)],
)
def test_a_switch_is_refused_without_the_gateway_or_the_front_end(services, ended, tmp_path):
    """It would move the API to the front end's own port, or take the server for one of another machine's fleet."""
    served = PreparedServer(resolve_config("tiny-random-llama", "latency", FREE), cast(Any, None), tmp_path)
    with (
        guarded(tmp_path, services, replicas=1, gateway_id="la2"),
        pytest.raises(ServerError, match=f"The {ended} of this server has ended; its log is in .*/{ended}/server.log"),
    ):
        as_running(served, tmp_path)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[Process]]:
    """Processes that `start_fleet` starts; the first front end finds its port taken."""
    processes: list[Process] = []

    def launch(served: PreparedServer, *_: object, with_openai: bool = False, **__: object) -> Process:
        processes.append(Process("server", openai=choose_ports(served.resolved.profile.server, with_openai)[2]))
        return processes[-1]

    def start_service(name: str, *_: object, **__: object) -> Process:
        log = tmp_path / f"{len(processes)}.log"
        log.write_text(TAKEN if name.startswith(FRONT_END) and len(processes) < 5 else "")
        processes.append(Process(name, log))
        return processes[-1]

    def wait_until_ready(services: list[Process], note: Any) -> None:
        if any(service.log_path.read_text() for service in services):
            raise ServerError("the front end ended")

    for name, replacement in {
        "require_dynamo": lambda: None,
        "write_card": lambda *_: tmp_path,
        "prompt_prefix": lambda _: (),
        "membership_of": lambda *_: FLEET,
        "launch": launch,
        "worker_service": lambda number, *_: f"worker-{number}",
        "front_end_service": lambda resolved, run_dir, host, port, *_: f"{FRONT_END} {port}",
        "start_service": start_service,
        "wait_until_ready": wait_until_ready,
    }.items():
        monkeypatch.setattr(fleet, name, replacement)
    yield processes
    remove_discovery(tmp_path)


def served_with(*overrides: str) -> PreparedServer:
    resolved = resolve_config("tiny-random-llama", "latency", ("backend=torch", "device=cpu", *FREE, *overrides))
    return PreparedServer(resolved, cast(Any, None), cast(Any, None))


def test_a_machine_with_another_engine_than_its_fleet_starts_nothing(started, tmp_path, monkeypatch):
    other = Member("10.0.0.7", FLEET.model_copy(update={"engine": {"dtype": "bfloat16"}}))
    monkeypatch.setattr(membership, "listed_members", lambda server: [other])
    monkeypatch.setattr(fleet, "wait_until_ready", lambda *_: None)

    with pytest.raises(ServerError, match=r"^This machine .* dtype float32 instead of bfloat16 at 10.0.0.7"):
        start_fleet(served_with(), folders(), tmp_path, join=True)
    assert not started

    notes: list[str] = []
    start_fleet(served_with(), folders(), tmp_path, beside=True, compare=False, note=notes.append)
    assert not notes, "a switch changes the engine while the old one is listed"
    start_fleet(served_with(), folders(), tmp_path, note=notes.append)
    assert "the workers at 10.0.0.7 get no requests" in notes[0]


@pytest.mark.parametrize("overrides", [(), ("server.openai=false",)])
def test_a_start_beside_another_start_changes_nothing(started, tmp_path, overrides):
    """It took the discovery folder and Triton's backends away from the other, whose workers made a folder there."""
    create_discovery(tmp_path)
    discovery = (tmp_path / DISCOVERY).readlink()

    with start_lock(tmp_path), pytest.raises(ServerError, match="Another server is being started"):
        start_fleet(served_with(*overrides), folders(), tmp_path)

    assert not started
    assert (tmp_path / DISCOVERY).readlink() == discovery
    assert discovery.is_dir()


def test_a_discovery_folder_of_a_worker_whose_link_was_removed_is_replaced(tmp_path):
    (tmp_path / DISCOVERY / "v1").mkdir(parents=True)

    create_discovery(tmp_path)

    assert (tmp_path / DISCOVERY).is_symlink()
    remove_discovery(tmp_path)
    assert not list(tmp_path.iterdir())


def test_without_shared_memory_the_discovery_folder_is_refused_with_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr("pipeline.dynamo.own_discovery._MEMORY", tmp_path / "shm")

    with pytest.raises(ServerError, match="shm, where the server has its shared memory, cannot be written: No such"):
        create_discovery(tmp_path)


@pytest.mark.parametrize("gateway", ["true", "false"])
def test_a_free_port_that_another_program_takes_is_chosen_again(started, tmp_path, gateway):
    running = start_fleet(served_with(f"server.gateway.enabled={gateway}"), folders(), tmp_path)

    first, again = started[:3], started[3:]
    assert all(process.is_stopped for process in first)
    assert running.running == again
    assert first[0].openai.front_end != again[0].openai.front_end
    assert again[2].name == f"{FRONT_END} {again[0].openai.front_end}"


def test_a_fixed_port_that_another_program_takes_is_named(started, tmp_path, monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        overrides = (
            "server.gateway.enabled=false",
            f"server.openai_port={port}",
        )

        def note(text: str) -> None:
            taken.listen()  # from now on the port is in use

        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with pytest.raises(ServerError, match=rf"Port {port} \(server.openai_port\)"):
            start_fleet(served_with(*overrides), folders(), tmp_path, note=note)
