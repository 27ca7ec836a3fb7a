"""Start, stop and failure of a server, with a script that replaces tritonserver."""

from __future__ import annotations

import errno
import json
import os
import signal
import threading
from pathlib import Path

import psutil
import pytest

from pipeline.config.schema import GatewayConfig
from pipeline.errors import ServerError
from pipeline.server.log import crash_log
from pipeline.server.metrics import read_metrics
from pipeline.server.processes import shm_files
from pipeline.server.server import stop_server
from pipeline.server.service import Service, find_services
from pipeline.server.state import STATE, find_server, is_ready
from pipeline.server.tritonserver_command import is_plain
from tests.servers import left_over, processes_of, wait_for
from tests.unit.server.fake_server import (
    FREE,
    assert_gone,
    assert_killed,
    command_lines,
    in_killed_process,
    slow_end,
    start,
    tritonserver_of,
    write,
)


def test_a_stopped_server_leaves_nothing_behind(fake, tmp_path):
    server = start(tmp_path)
    assert find_server(tmp_path / "run") == server.state
    assert len(processes_of(server.state.server_id)) == 3
    assert shm_files(server.state.server_id)

    server.stop()
    server.stop()

    assert_gone(server)


def test_paths_that_a_shell_would_split_get_other_names_that_go_with_the_server(fake, tmp_path):
    repository = tmp_path / "models of é & co"
    repository.mkdir()
    server = start(tmp_path, repository=repository.name)
    words = tritonserver_of(server, fake).cmdline()
    (name,) = (word.partition("=")[2] for word in words if word.startswith("--model-repository="))
    assert is_plain(Path(name))
    assert Path(name).samefile(repository)
    assert server.state.repository == str(repository)

    server.stop()

    assert_gone(server)


def test_the_running_server_of_another_version_is_not_forgotten(fake, tmp_path):
    """Its state file was removed, so that no command could stop it."""
    server = start(tmp_path, detach=True)
    path = tmp_path / "run" / STATE
    state = json.loads(path.read_text())
    path.write_text(json.dumps({**state, "a_setting_of_later_versions": 1}))

    with pytest.raises(ServerError, match=rf"another version .* process {server.state.guard_pid} still runs.*`kill"):
        stop_server(tmp_path / "run")

    psutil.Process(server.state.guard_pid).terminate()
    server.guard.wait()
    assert_gone(server)


def test_another_process_can_stop_it(fake, tmp_path):
    server = start(tmp_path, detach=True)

    assert stop_server(tmp_path / "run") == server.state
    assert stop_server(tmp_path / "run") is None
    assert_gone(server)


@pytest.mark.parametrize("victim", ["guard", "server", "both"])
def test_whatever_is_killed_only_the_log_is_left_and_the_next_start_works(fake, tmp_path, victim):
    write(fake, 'print("words before the end", flush=True)')
    notes: list[str] = []
    server = start(tmp_path, note=notes.append)
    assert not any("its log is now" in note for note in notes)
    guard = psutil.Process(server.state.guard_pid)
    tritonserver = tritonserver_of(server, fake)
    for process in {"guard": [guard], "server": [tritonserver], "both": [guard, tritonserver]}[victim]:
        process.send_signal(signal.SIGKILL)
    server.guard.wait()
    assert find_server(tmp_path / "run") is None
    assert_gone(server)
    assert crash_log(tmp_path / "run") == tmp_path / "run" / "server.log"

    again = start(tmp_path, note=notes.append)
    kept = tmp_path / "run" / "server.log.1"
    assert any(str(kept) in note for note in notes)
    assert "words before the end" in kept.read_text()
    if victim == "server":
        assert "ended by itself (signal 9, Killed)" in kept.read_text()

    again.stop()
    assert_gone(again)
    assert "was stopped (SIGTERM)" in (tmp_path / "run" / "server.log").read_text()
    start(tmp_path).stop()
    assert not (tmp_path / "run" / "server.log.2").exists()


def test_one_server_per_run_folder(fake, tmp_path):
    server = start(tmp_path)
    with pytest.raises(ServerError, match="already runs"):
        start(tmp_path)
    server.stop()


def test_a_server_that_ends_at_once_is_explained_and_leaves_nothing(fake, tmp_path):
    write(fake, 'sys.exit("error: creating server: something odd")')

    with pytest.raises(ServerError, match=r"ended before it was ready(.|\n)*something odd"):
        start(tmp_path)

    assert find_server(tmp_path / "run") is None
    (record,) = tmp_path.glob("*.json")  # by the server, which names it after its shared memory
    assert not left_over(record.stem)


def test_a_server_that_a_full_disk_leaves_without_a_state_does_not_run_on(fake, tmp_path, monkeypatch):
    def full(path: Path, *arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pipeline.server.server.write_atomically", full)

    with pytest.raises(OSError, match="No space"):
        start(tmp_path, detach=True)

    assert not command_lines(tmp_path)  # neither its guard


def test_a_gateway_whose_server_has_no_guard_does_not_run_on(fake, tmp_path, monkeypatch):
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    sleeper = Service("gateway", ["sleep", "600"], {"PATH": "/usr/bin:/bin"}, {}, lambda: True)
    monkeypatch.setattr("pipeline.server.server.gateway_service", lambda *arguments: sleeper)
    monkeypatch.setattr("pipeline.server.server.start_guard", full)

    with pytest.raises(OSError, match="No space"):
        start(tmp_path, FREE.model_copy(update={"gateway": GatewayConfig()}), detach=True)

    assert find_services(tmp_path / "run") == []
    assert not command_lines(tmp_path)


def test_a_gateway_whose_start_is_killed_before_its_server_has_a_guard_does_not_run_on(fake, tmp_path, monkeypatch):
    sleeper = Service("gateway", ["sleep", "600"], {"PATH": "/usr/bin:/bin"}, {}, lambda: True)
    monkeypatch.setattr("pipeline.server.server.gateway_service", lambda *arguments: sleeper)
    monkeypatch.setattr("pipeline.server.server.start_guard", lambda spec: os.kill(os.getpid(), signal.SIGKILL))
    config = FREE.model_copy(update={"gateway": GatewayConfig()})

    assert_killed(in_killed_process(lambda: start(tmp_path, config, detach=True)))

    wait_for(lambda: not command_lines(tmp_path))


def test_a_server_that_never_gets_ready_is_stopped(fake, tmp_path):
    write(fake, "import time; time.sleep(600)")

    with pytest.raises(ServerError, match="not ready after 1 s"):
        start(tmp_path, FREE.model_copy(update={"startup_timeout_s": 0.6}))

    assert find_server(tmp_path / "run") is None


def test_a_proxy_is_not_asked_for_our_own_server(fake, tmp_path, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    server = start(tmp_path)

    assert is_ready(server.state)
    assert read_metrics(server.state.http_url) == {}


def test_a_server_that_is_stopped_before_it_is_ready_does_not_load_to_the_end_and_did_not_crash(fake, tmp_path):
    # Triton ends only after it has loaded its models.
    write(fake, slow_end(600, "loaded") + 'print("loading", flush=True); time.sleep(600)')
    state, log = (tmp_path / "run" / name for name in (STATE, "server.log"))
    failures: list[BaseException] = []

    def work() -> None:
        try:
            start(tmp_path)
        except ServerError as error:
            failures.append(error)

    starting = threading.Thread(target=work)
    starting.start()
    wait_for(lambda: state.is_file() and log.is_file() and "loading" in log.read_text())
    assert stop_server(tmp_path / "run") is not None
    starting.join()

    assert "was stopped before it was ready" in str(failures[0])
    assert "loaded" not in log.read_text()
    assert crash_log(tmp_path / "run") is None


def test_a_server_of_another_kind_of_machine_is_named(fake, tmp_path):
    fake.write_bytes(b"\x7fELF of another machine")

    with pytest.raises(ServerError, match="tritonserver cannot be run: Exec format error"):
        start(tmp_path)
    assert not (tmp_path / "run" / STATE).exists()
