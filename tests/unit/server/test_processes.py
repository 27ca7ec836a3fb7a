"""Processes of servers, and removal of temporary folders of killed ones."""

from __future__ import annotations

import math
import subprocess
import sys
import time

import psutil

from pipeline.server import processes
from pipeline.server.state import wait_for_ends
from tests.processes import running

HOLD = """
import mmap, sys
with open(sys.argv[1]) as file:
    held = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
print(flush=True)
input()
"""


def test_empty_folders_of_killed_servers_go_when_no_server_runs(tmp_path, monkeypatch):
    empty, full, other = (tmp_path / name for name in ("python_env_a", "python_env_b", "another"))
    for folder in (empty, full, other):
        folder.mkdir()
    # In place of the real one, which other servers of this machine may have loaded.
    library = full / "libtriton_python.so"
    library.write_bytes(b"x")
    monkeypatch.setattr(processes, "_PYTHON_BACKEND", str(library).encode())
    monkeypatch.setattr(processes, "_ENVIRONMENTS", f"{tmp_path}/python_env_*")

    command = [sys.executable, "-c", HOLD, library]
    with running(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        server.stdout.readline()
        processes.remove_environments()
        assert empty.exists()  # it may be that server's
        server.communicate(b"\n")
    processes.remove_environments()

    assert [folder.exists() for folder in (empty, full, other)] == [False, True, True]


def test_the_time_since_a_start_is_not_that_of_the_wall_clock(monkeypatch):
    with running(["sleep", "600"]) as process:
        monkeypatch.setattr(time, "time", lambda: 0.0)
        assert 0 <= processes.seconds_since_start(process.pid) < 600
    assert processes.seconds_since_start(process.pid) == 0


def test_a_process_that_its_parent_does_not_collect_has_ended():
    # In Python, since a shell may collect its child before it runs the next command.
    script = """
import subprocess, time
print(subprocess.Popen(["sleep", "600"]).pid, flush=True)
time.sleep(600)
"""
    with running([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        child.kill()
        wait_for_ends([child], math.inf)
        assert child.status() == psutil.STATUS_ZOMBIE
