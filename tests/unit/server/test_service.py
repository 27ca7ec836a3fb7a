"""Services beside a server: start, find, stop, failure; with small scripts."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from pipeline.errors import ServerError
from pipeline.server.ports import bind_ports
from pipeline.server.service import (
    RunningService,
    Service,
    find_services,
    start_service,
    stop_service,
    wait_until_ready,
)
from pipeline.server.watch import answers
from tests.http_server import Handler, serving
from tests.patience import PATIENCE_S
from tests.servers import left_over, processes_of, wait_for
from tests.unit.server.fake_server import command_lines, hurry_guards

HTTP = "import http.server, sys; http.server.test(http.server.SimpleHTTPRequestHandler, port=int(sys.argv[1]))"


def service(name: str = "door", code: str = HTTP, timeout_s: float = PATIENCE_S) -> Service:
    port = bind_ports("127.0.0.1", {"port": 0})["port"]
    return Service(
        name,
        [sys.executable, "-c", code, str(port)],
        {"PATH": "/usr/bin:/bin"},
        {"http": port},
        lambda: answers(f"http://127.0.0.1:{port}/"),
        startup_timeout_s=timeout_s,
    )


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    hurry_guards(monkeypatch)
    yield tmp_path / "run"
    for state in find_services(tmp_path / "run"):
        stop_service(tmp_path / "run", state.name)


def start(run_dir: Path, *services: Service) -> list[RunningService]:
    running = [start_service(one, run_dir) for one in services]
    wait_until_ready(running)
    return running


def test_services_are_found_by_name_and_stopped_each_by_itself(run_dir):
    door, back = start(run_dir, service("door"), service("back"))

    assert find_services(run_dir) == [back.state, door.state]
    assert stop_service(run_dir, "door") == door.state
    assert stop_service(run_dir, "door") is None
    assert find_services(run_dir) == [back.state]
    assert not left_over(door.state.server_id)
    assert back.service.is_ready()


def test_a_service_that_its_guard_started_again_is_still_found(run_dir):
    (door,) = start(run_dir, replace(service(), max_restarts=1))
    (child,) = (one for one in processes_of(door.state.server_id) if one.pid != door.state.guard_pid)
    child.kill()

    (found,) = wait_for(lambda: [state for state in find_services(run_dir) if state != door.state])
    assert (found.server_id, found.restarts, found.restart_reason) == (door.state.server_id, 1, "signal 9, Killed")


def child_of(running: RunningService) -> psutil.Process | None:
    """The process of a service; None while its guard waits."""
    found = (one for one in processes_of(running.state.server_id) if one.pid != running.state.guard_pid)
    return next(found, None)


def test_a_service_without_etcd_starts_again_when_etcd_does_and_that_does_not_count(run_dir):
    port = bind_ports("127.0.0.1", {"port": 0})["port"]
    needs = (f"http://127.0.0.1:{port}/health", "http://127.0.0.1:1/health")
    (door,) = start(run_dir, replace(service(), max_restarts=1, waits_for=needs))

    class Etcd(Handler):
        def do_GET(self) -> None:
            self.answer()

    for number in (1, 2):  # more often than max_restarts
        child = child_of(door)
        assert child is not None
        child.kill()
        wait_for(lambda count=number: door.log_path.read_text().count("waiting until there is an answer at") == count)
        assert child_of(door) is None
        with serving(Etcd, port):
            wait_for(door.service.is_ready)
    child = child_of(door)
    assert child is not None
    child.kill()
    wait_for(lambda: door.log_path.read_text().count("waiting") == 3)

    door.stop()
    assert "was stopped (SIGTERM)" in door.log_path.read_text()
    assert not left_over(door.state.server_id)


def test_a_stopped_service_leaves_nothing_behind(run_dir):
    (door,) = start(run_dir, service())
    assert len(processes_of(door.state.server_id)) == 2

    door.stop()
    door.stop()

    assert find_services(run_dir) == []
    assert not left_over(door.state.server_id)


def test_a_service_that_a_full_disk_leaves_without_a_state_does_not_run_on(run_dir, monkeypatch):
    def full(path: Path, *arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pipeline.server.service.write_atomically", full)

    with pytest.raises(OSError, match="No space"):
        start(run_dir, service())

    assert not command_lines(run_dir)  # neither its guard


def test_one_service_of_a_name_per_run_folder(run_dir):
    start(run_dir, service())

    with pytest.raises(ServerError, match="door already runs"):
        start(run_dir, service())


def test_a_service_that_ends_is_explained_by_its_log(run_dir):
    with pytest.raises(ServerError, match=r"door ended before it was ready(.|\n)*no such plug"):
        start(run_dir, service(code="import sys; sys.exit('no such plug')"))

    assert find_services(run_dir) == []


def test_a_service_that_does_not_get_ready_is_named(run_dir):
    with pytest.raises(ServerError, match="door was not ready after 0 s"):
        start(run_dir, service(code="import time; time.sleep(600)", timeout_s=0.3))


def test_what_a_killed_guard_left_running_is_ended(run_dir):
    (door,) = start(run_dir, service())
    guard = psutil.Process(door.state.guard_pid)
    guard.kill()
    guard.wait()

    assert find_services(run_dir) == []
    assert not left_over(door.state.server_id)
