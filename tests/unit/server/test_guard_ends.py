"""The guard leaves nothing behind, whichever process is killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.engine.start_command import Listening, StartCommand
from pipeline.server.guard import OWNER, STOP_SECONDS
from pipeline.server.processes import model_processes, shm_files
from pipeline.server.server import stop_server
from pipeline.server.state import STATE, find_server, is_ready
from pipeline.server.tritonserver_command import listening_words
from pipeline.triton_models.handover import HANDOVER, RUNNING
from tests.patience import PATIENCE_S
from tests.processes import running
from tests.servers import left_over, processes_of, wait_for, wait_for_guard
from tests.unit.server.fake_server import (
    FREE,
    assert_gone,
    assert_killed,
    hurry_guards,
    in_killed_process,
    slow_end,
    start,
    tritonserver_of,
    write,
)


def test_no_other_user_can_read_what_a_server_shares_or_says(fake, tmp_path):
    write(fake, 'pathlib.Path("/dev/shm", prefix + "region").chmod(0o644)')  # as Triton does
    server = start(tmp_path)
    files = [*shm_files(server.state.server_id), tmp_path / "run" / STATE]
    assert len(files) == 2

    assert wait_for(lambda: {path.stat().st_mode & 0o077 for path in files} == {0})
    server.stop()


def test_a_server_that_is_drained_finishes_what_runs(fake, tmp_path):
    write(fake, slow_end(0.3, "finished what was running"))  # as Triton ends while requests run
    server = start(tmp_path, detach=True)

    assert stop_server(tmp_path / "run", drain=True) == server.state

    assert "finished what was running" in server.log_path.read_text()
    assert "was stopped (SIGUSR1)" in server.log_path.read_text()
    assert_gone(server)


# Waits in its handler of SIGTERM until another server waits there too.
ENDS_WITH_ANOTHER = """
import signal
def end(number, frame):
    (folder / (prefix + ".ending")).touch()
    deadline = time.monotonic() + {patience}
    while len(list(folder.glob("*.ending"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    print(len(list(folder.glob("*.ending"))), "servers ended at the same time", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
"""


@pytest.mark.parametrize("drain", [True, False])
def test_servers_end_at_the_same_time(fake, tmp_path, drain):
    write(fake, ENDS_WITH_ANOTHER.format(patience=STOP_SECONDS - 5))
    servers = [start(tmp_path / name, detach=True) for name in ("first", "second")]

    assert stop_server(*(server.run_dir for server in servers), drain=drain) == servers[0].state

    for server in servers:
        assert "2 servers ended at the same time" in server.log_path.read_text()
        assert_gone(server)


def test_requests_that_do_not_end_are_waited_for_once(fake, tmp_path, monkeypatch):
    monkeypatch.setattr("pipeline.server.server.DRAIN_SECONDS", 0.1)
    server = start(tmp_path, detach=True)

    with (tmp_path / "run" / HANDOVER / RUNNING).open("rb") as request:
        fcntl.flock(request, fcntl.LOCK_SH)
        assert stop_server(tmp_path / "run", drain=True) == server.state

    assert "was stopped (SIGTERM)" in server.log_path.read_text()
    assert_gone(server)


def test_processes_in_sessions_of_their_own_end_with_the_server(fake, tmp_path):
    write(fake, 'subprocess.Popen(["sleep", "600"], start_new_session=True)')
    server = start(tmp_path)
    assert len(processes_of(server.state.server_id)) == 4

    tritonserver_of(server, fake).send_signal(signal.SIGKILL)
    server.guard.wait()

    assert_gone(server)


def test_what_outlives_the_processes_is_removed_by_its_command(fake, tmp_path):
    removed = tmp_path / "removed"
    server_command = [sys.executable, str(fake)]

    def make(listening: Listening, server_id: str) -> StartCommand:
        argv = [
            *server_command,
            *listening_words(listening),
            f"--backend-config=python,shm-region-prefix-name={server_id}",
        ]
        return StartCommand(argv, dict(os.environ), ("touch", str(removed)))

    server = start(tmp_path, make_command=make)
    assert not removed.exists()
    server.stop()

    assert removed.exists()
    assert_gone(server)


def start_in_killed_process(tmp_path: Path, **options: Any) -> str:
    """Start a server in a process that ends by SIGKILL. Returns the server's id."""
    path = tmp_path / "id"
    assert_killed(in_killed_process(lambda: path.write_text(start(tmp_path, **options).state.server_id)))
    return path.read_text()


def test_the_server_ends_with_the_process_that_started_it(fake, tmp_path):
    server_id = start_in_killed_process(tmp_path)

    wait_for(lambda: not left_over(server_id))
    assert find_server(tmp_path / "run") is None


def test_a_detached_server_outlives_the_process_that_started_it(fake, tmp_path):
    server_id = start_in_killed_process(tmp_path, detach=True)

    wait_for_guard(server_id)
    stopped = stop_server(tmp_path / "run")
    assert stopped is not None
    assert stopped.server_id == server_id
    assert not left_over(server_id)


def test_a_server_that_is_to_be_detached_ends_if_its_start_is_killed(fake, tmp_path):
    write(fake, "time.sleep(600)")  # it never gets ready
    starter = in_killed_process(lambda: start(tmp_path, detach=True))
    state = wait_for(lambda: find_server(tmp_path / "run"))
    wait_for(lambda: [p for p in processes_of(state.server_id) if str(fake) in p.cmdline()])

    os.kill(starter, signal.SIGKILL)
    assert_killed(starter)

    wait_for(lambda: not left_over(state.server_id))


def test_a_detached_server_ends_with_the_process_that_owns_it(fake, tmp_path, monkeypatch):
    with running(["sleep", "600"]) as owner:
        monkeypatch.setenv(OWNER, str(owner.pid))
        server = start(tmp_path, detach=True)
    # It was killed as by `kill -9`, so that it could end nothing itself.
    server.guard.wait()

    assert "was stopped (the command that owns it has ended)" in server.log_path.read_text()
    assert_gone(server)


def test_a_server_whose_run_folder_is_removed_ends(fake, tmp_path):
    """Without its state file no command would find it."""
    server = start(tmp_path, detach=True)

    shutil.rmtree(tmp_path / "run")

    server.guard.wait(PATIENCE_S)
    assert not left_over(server.state.server_id)
    assert not (tmp_path / "run").exists()


def model_of(folder: Path) -> str:
    """Code of a server that runs a model in a process such as Triton's."""
    stub = folder / "triton_python_backend_stub"
    stub.write_text("#!/bin/sh\nsleep 600 & wait\n")
    stub.chmod(0o755)
    return f'subprocess.Popen([{str(stub)!r}, "/models/tensorrt_llm_engine/1/model.py"])\n'


def test_a_server_whose_model_dies_is_started_again_and_says_so(fake, tmp_path):
    write(fake, model_of(tmp_path))
    server = start(tmp_path, FREE.model_copy(update={"max_restarts": 3}), detach=True)
    (pid,) = wait_for(lambda: model_processes(server.state.server_id))
    wait_for_guard(server.state.server_id)
    os.kill(pid, signal.SIGKILL)

    state = wait_for(lambda: (s := find_server(server.run_dir)) and s.restarts and s)

    assert "the process of the model tensorrt_llm_engine died" in state.restart_reason
    assert wait_for(lambda: is_ready(state))
    assert state.http_url == server.state.http_url
    log = server.log_path.read_text()
    assert "lookahead: restart 1 (the process of the model tensorrt_llm_engine died" in log
    server.stop()
    assert_gone(server)


def test_a_server_that_hangs_before_it_is_ready_is_started_again(fake, tmp_path, monkeypatch):
    hurry_guards(monkeypatch, hang_seconds=0.6)
    flag = tmp_path / "hung"
    write(fake, f"import pathlib\nif not pathlib.Path({str(flag)!r}).exists():\n"
        f"    pathlib.Path({str(flag)!r}).touch()\n    import time\n    time.sleep(600)\n")  # fmt: skip
    server = start(tmp_path, FREE.model_copy(update={"max_restarts": 30}), detach=True)  # a busy machine hangs too

    state = find_server(server.run_dir)
    assert state is not None
    assert state.restarts
    assert "did nothing for 1 s before it was ready" in state.restart_reason
    server.stop()
    assert_gone(server)
