"""What the guard of a server makes of the processes that run its models."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pipeline.server import guard
from pipeline.server.guard import GuardSpec
from pipeline.server.processes import MARK, model_processes
from tests.patience import PATIENCE_S


@pytest.fixture
def model(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process such as Triton runs a Python model in."""
    stub = tmp_path / "triton_python_backend_stub"
    stub.write_text("#!/bin/sh\nread line\n")
    stub.chmod(0o755)
    process = subprocess.Popen(
        [stub, "/models/tensorrt_llm/1/model.py"], env=os.environ | {MARK: "la-test"}, stdin=subprocess.PIPE
    )
    yield process
    process.kill()
    process.wait()


def wait_until_seen(pid: int) -> None:
    while pid not in model_processes("la-test"):  # until it has become the stub
        pass


def test_model_processes_are_found_by_their_servers_mark(model):
    wait_until_seen(model.pid)

    assert model_processes("la-test") == {model.pid: "tensorrt_llm"}
    assert model_processes("la-other") == {}


def test_a_child_that_a_model_forked_is_no_model(tmp_path):
    """Until it runs a program of its own it has its parent's name, arguments and environment; it ends at any time."""
    stub = tmp_path / "triton_python_backend_stub"
    stub.write_text("#!/bin/sh\n(sleep 600; :) &\nread line\n")
    stub.chmod(0o755)
    parent = subprocess.Popen(
        [stub, "/models/tensorrt_llm/1/model.py"],
        env=os.environ | {MARK: "la-test"},
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while len(psutil.Process(parent.pid).children(recursive=True)) < 2 and time.monotonic() < deadline:
            pass
        fork, _ = psutil.Process(parent.pid).children(recursive=True)
        assert fork.cmdline() == psutil.Process(parent.pid).cmdline()
        assert model_processes("la-test") == {parent.pid: "tensorrt_llm"}
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()


@pytest.mark.parametrize("server_ends", [False, True])
def test_a_server_whose_model_died_is_to_end_unless_it_does_so_by_itself(model, monkeypatch, server_ends):
    wait_until_seen(model.pid)
    seen = threading.Event()

    def watched(server_id: str) -> dict[int, str]:
        found = model_processes(server_id)
        if found:
            seen.set()
        return found

    monkeypatch.setattr(guard, "model_processes", watched)
    monkeypatch.setattr(guard, "_WATCH_SECONDS", 0.01)
    monkeypatch.setattr(guard, "_CRIPPLED_SECONDS", 60.0 if server_ends else 0.01)
    wake_read, wake_write = os.pipe()
    server = subprocess.Popen(["sleep", "600"])
    ends: list[guard._End] = []
    spec = GuardSpec([], {}, "", "", "la-test", watch_parent=False)
    waiting = threading.Thread(target=lambda: ends.append(guard._wait_for_end(server, wake_read, spec)))
    waiting.start()
    try:
        assert seen.wait(30)
        model.kill()
        model.wait()
        if server_ends:
            server.kill()
        waiting.join(30)
    finally:
        server.kill()
        server.wait()
        os.close(wake_read)
        os.close(wake_write)

    (end,) = ends
    assert not end.wanted
    assert ("the process of the model tensorrt_llm died" in end.reason) is not server_ends
