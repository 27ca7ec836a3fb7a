"""What a switch keeps of the running fleet, and the machines on which it is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from pipeline.config.resolution import resolve_config
from pipeline.config.schema import ServerConfig
from pipeline.dynamo.running_fleet import as_running, has_joined
from pipeline.dynamo.services import FRONT_END, worker_service
from pipeline.errors import ServerError
from pipeline.server.discovery import ETCD_ENDPOINTS, FILE_KV
from pipeline.server.gateway import OPENAI
from pipeline.server.guard import GuardSpec
from pipeline.server.startup import PreparedServer
from pipeline.server.state import GATEWAY, service_dir
from tests.server_states import STATE, guarded
from tests.servers import FREE_PORTS
from tests.unit.dynamo.requests import FLEET

SETTINGS = ("backend=torch", "device=cpu", *FREE_PORTS)
ALONE: Mapping[str, Mapping[str, int]] = {GATEWAY: {}, "worker-1": {}}
FIRST = {GATEWAY: {OPENAI: 8}, FRONT_END: {"http": 7}, "worker-1": {}}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (FILE_KV, ETCD_ENDPOINTS, "DYN_NAMESPACE", "DYN_TCP_RPC_HOST"):
        monkeypatch.delenv(name, raising=False)


@contextmanager
def fleet(folder: Path, services: Mapping[str, Mapping[str, int]], *overrides: str) -> Iterator[None]:
    """A fleet of one server seems to run. overrides: settings of its start."""
    resolved = resolve_config("tiny-random-llama", "latency", (*SETTINGS, *overrides))
    worker = worker_service(1, resolved, [STATE], folder, folder, FLEET)
    spec = GuardSpec(worker.argv, dict(worker.environment), str(folder), "service.json", "la1")
    path = service_dir(folder, "worker-1") / "guard.json"
    content = json.dumps(spec._asdict())
    path.parent.rename(folder / "made")  # guarded makes it
    with guarded(folder, services, replicas=1, gateway_id="la2"):
        path.write_text(content)
        yield


def kept(folder: Path, *overrides: str) -> ServerConfig:
    """The server section of a new profile, as a switch uses it."""
    resolved = resolve_config("tiny-random-llama", "throughput", (*SETTINGS, *overrides))
    return as_running(PreparedServer(resolved, cast(Any, None), folder), folder).resolved.profile.server


def test_a_switch_stays_in_its_fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new profile has discovery `file` by default, with which its servers would leave the fleet."""
    monkeypatch.setenv(ETCD_ENDPOINTS, "http://one:1")
    with fleet(tmp_path, FIRST, "server.discovery=etcd"):
        assert not has_joined(tmp_path)
        found = kept(tmp_path, "server.openai=true", "server.replicas=2")

    assert (found.openai, found.openai_port, found.replicas, found.discovery) == (True, 8, 1, "etcd")
    assert (found.host, found.http_port, found.grpc_port, found.metrics_port) == (STATE.host, 1, 2, 3)


@pytest.mark.parametrize("change", [{"older": 1}, {"command": ["python", "{}"]}])
def test_a_server_of_another_version_is_not_switched(change: dict[str, object], tmp_path: Path) -> None:
    with fleet(tmp_path, FIRST):
        path = service_dir(tmp_path, "worker-1") / "guard.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
        with pytest.raises(ServerError, match=r"was written by another version .*`lookahead stop`, then"):
            kept(tmp_path)


def test_a_machine_that_has_joined_can_switch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FILE_KV, "/shared")
    with fleet(tmp_path, ALONE):
        assert has_joined(tmp_path)
        assert kept(tmp_path).openai


def test_the_shared_folder_of_one_machine_is_its_own(tmp_path: Path) -> None:
    with fleet(tmp_path, FIRST):
        assert kept(tmp_path).discovery == "file"


@pytest.mark.parametrize(
    ("discovery", "started", "now", "message"),
    [
        ("etcd", {ETCD_ENDPOINTS: "http://one:1"}, {}, f"{ETCD_ENDPOINTS} is now http://localhost:2379 instead of"),
        ("file", {FILE_KV: "/shared"}, {}, f"{FILE_KV} is now not set instead of /shared"),
        ("file", {}, {FILE_KV: "/shared"}, f"{FILE_KV} is now /shared instead of not set"),
        ("etcd", {"DYN_TCP_RPC_HOST": "10.0.0.7"}, {}, "DYN_TCP_RPC_HOST is now not set instead of 10.0.0.7"),
        ("file", {}, {"DYN_NAMESPACE": "team"}, "DYN_NAMESPACE is now team instead of lookahead"),
    ],
)
def test_a_switch_in_the_environment_of_another_fleet_is_refused(
    discovery: str,
    started: dict[str, str],
    now: dict[str, str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in started.items():
            patch.setenv(name, value)
        running = fleet(tmp_path, FIRST, f"server.discovery={discovery}")
        running.__enter__()
    try:
        for name, value in now.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(ServerError, match=message):
            kept(tmp_path)
    finally:
        running.__exit__(None, None, None)
