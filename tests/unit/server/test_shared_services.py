"""The gateway of a fleet ends with the last server, and the fleet is found without its first one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pipeline.server import state as server_state
from pipeline.server.log import LOG, was_stopped
from pipeline.server.processes import MARK
from pipeline.server.shared_services import end_shared_service, load_state, locked_state
from pipeline.server.state import STATE, ServerState, find_server, gateway_state_path, has_gateway, replica_dir
from tests import server_states
from tests.patience import PATIENCE_S
from tests.servers import processes_of

# Tests of several checkouts may run on one machine.
ONE, TWO, GATEWAY = (f"la-{name}-{os.getpid()}" for name in ("one", "two", "gateway"))


@pytest.fixture
def marked() -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Processes of two servers and of their gateway, by their mark."""
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    found = {name: subprocess.Popen(sleep, env={MARK: name}) for name in (ONE, TWO, GATEWAY)}
    yield found
    for process in found.values():
        process.kill()
        process.wait()


@pytest.fixture
def state_path(tmp_path: Path) -> Path:
    path = gateway_state_path(tmp_path)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"server_id": GATEWAY, "ends_with": [ONE, TWO]}))
    return path


def test_a_gateway_ends_with_the_last_of_its_servers(marked, state_path):
    end_shared_service(state_path, "la-other")
    end_shared_service(state_path, ONE)
    assert load_state(state_path)["ends_with"] == [TWO]
    assert processes_of(GATEWAY)
    assert not was_stopped(state_path.with_name(LOG))

    end_shared_service(state_path, TWO)
    assert marked[GATEWAY].wait(PATIENCE_S) == -9
    assert was_stopped(state_path.with_name(LOG))  # so the next start does not keep it as the log of a crash


def test_a_killed_server_does_not_keep_the_gateway(marked, state_path):
    marked[ONE].kill()
    marked[ONE].wait()

    end_shared_service(state_path, TWO)
    assert marked[GATEWAY].wait(PATIENCE_S) == -9


def test_servers_that_end_at_the_same_moment_leave_no_gateway(marked, state_path):
    """Each still sees the processes of the other one."""
    ends = [threading.Thread(target=end_shared_service, args=(state_path, name)) for name in (ONE, TWO)]
    for end in ends:
        end.start()
    for end in ends:
        end.join()

    assert marked[GATEWAY].wait(PATIENCE_S) == -9


def test_a_missing_or_damaged_state_file_changes_nothing(tmp_path, state_path):
    end_shared_service(tmp_path / "none" / "service.json", ONE)
    state_path.write_text("[1]")
    end_shared_service(state_path, ONE)
    with locked_state(state_path) as state:
        assert state == {}
    assert state_path.read_text() == "[1]"


def state_of(server_id: str, gateway_id: str = "") -> ServerState:
    return server_states.state_of(server_id=server_id, gateway_id=gateway_id, guard_pid=psutil.Process().pid)


def test_a_fleet_without_its_first_server_is_found_at_the_address_of_its_gateway(tmp_path, monkeypatch, state_path):
    monkeypatch.setattr(server_state, "is_guard", lambda pid, server_id: True)
    ports = {"http": 11, "grpc": 12, "metrics": 13, "openai": 14}
    state_path.write_text(json.dumps({"server_id": GATEWAY, "host": "0.0.0.0", "ports": ports, "ends_with": []}))
    assert find_server(tmp_path) is None

    second = replica_dir(tmp_path, 2)
    second.mkdir()
    (second / STATE).write_text(state_of(TWO).model_dump_json())
    found = find_server(tmp_path)
    assert found is not None
    assert (found.server_id, found.gateway_id) == (TWO, GATEWAY)
    assert (found.http_url, found.grpc_url) == ("http://127.0.0.1:11", "127.0.0.1:12")
    assert found.metrics_url == "http://127.0.0.1:13/metrics"

    first = state_of(ONE, GATEWAY)
    (tmp_path / STATE).write_text(first.model_dump_json())
    assert find_server(tmp_path) == first


def test_a_gateway_belongs_to_a_server_while_no_other_one_runs(marked, tmp_path, state_path):
    first = state_of(ONE, GATEWAY)
    assert not has_gateway(first, tmp_path)

    marked[TWO].kill()
    marked[TWO].wait()
    assert has_gateway(first, tmp_path)
    assert not has_gateway(state_of(ONE), tmp_path)
