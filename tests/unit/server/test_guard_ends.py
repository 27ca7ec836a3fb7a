"""Whatever is killed, the guard leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from pipeline.config.places import places
from pipeline.engine.command import Ports, StartCommand
from pipeline.server.server import stop_server
from pipeline.server.state import find_server
from tests.patience import PATIENCE_S
from tests.servers import processes_of
from tests.unit.server.fake_server import assert_gone, start, write

# Takes its time after SIGTERM, as Triton does while requests run.
SLOW_END = """
import signal, time
def end(number, frame):
    time.sleep(1)
    print("finished what was running", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
"""


@pytest.mark.parametrize("victim", ["guard", "server", "both"])
def test_whatever_is_killed_nothing_is_left_and_the_next_start_works(fake, tmp_path, victim):
    server = start(tmp_path)
    processes = processes_of(server.state.server_id)
    guard = [process for process in processes if process.pid == server.state.guard_pid]
    tritonserver = [process for process in processes if str(fake) in process.cmdline()]
    for process in {"guard": guard, "server": tritonserver, "both": guard + tritonserver}[victim]:
        process.send_signal(signal.SIGKILL)
    server.wait()

    assert find_server(tmp_path / "run") is None
    assert_gone(server)
    again = start(tmp_path)
    again.stop()
    assert_gone(again)


def test_a_server_that_is_drained_finishes_what_runs(fake, tmp_path):
    write(fake, SLOW_END)
    server = start(tmp_path, detach=True)

    assert stop_server(tmp_path / "run", drain=True) == server.state

    assert "finished what was running" in server.log_path.read_text()
    assert "was stopped (SIGUSR1)" in server.log_path.read_text()
    assert_gone(server)


def test_processes_in_sessions_of_their_own_end_with_the_server(fake, tmp_path):
    write(fake, 'subprocess.Popen(["sleep", "600"], start_new_session=True)')
    server = start(tmp_path)
    assert len(processes_of(server.state.server_id)) == 4

    psutil.Process(next(p.pid for p in processes_of(server.state.server_id) if str(fake) in p.cmdline())).send_signal(
        signal.SIGKILL
    )
    server.wait()

    assert_gone(server)


def test_what_outlives_the_processes_is_removed_by_its_command(fake, tmp_path):
    removed = tmp_path / "removed"
    server_command = [sys.executable, str(fake)]

    def make(ports: Ports, server_id: str) -> StartCommand:
        argv = [
            *server_command,
            f"--http-port={ports.http}",
            f"--backend-config=python,shm-region-prefix-name={server_id}",
        ]
        return StartCommand(argv, dict(os.environ), ("touch", str(removed)))

    server = start(tmp_path, make_command=make)
    assert not removed.exists()
    server.stop()

    assert removed.exists()
    assert_gone(server)


def test_the_server_ends_with_the_process_that_started_it(fake, tmp_path):
    script = (
        "import os, pathlib, sys; from tests.unit.server.fake_server import start;"
        "start(pathlib.Path(sys.argv[1])); os.kill(os.getpid(), 9)"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    assert subprocess.run(command, cwd=places().home, timeout=PATIENCE_S).returncode == -signal.SIGKILL
    state = find_server(tmp_path / "run")
    deadline = time.monotonic() + PATIENCE_S
    while state is not None and processes_of(state.server_id) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert state is None or not processes_of(state.server_id)
    assert find_server(tmp_path / "run") is None
