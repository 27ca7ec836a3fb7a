"""The guard and the processes of a server's models."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from pipeline.server import guard, processes
from pipeline.server import watch as module
from pipeline.server.guard import READY_FILE, GuardSpec
from pipeline.server.leftovers import remove_leftovers
from pipeline.server.log import LOG
from pipeline.server.processes import MARK, is_crashing, is_suspended, marked_processes, model_processes
from pipeline.server.shared_services import kill_processes_of
from pipeline.server.watch import HangWatch, ModelWatch, ServiceWatch
from tests.http_server import Handler, serving
from tests.patience import PATIENCE_S
from tests.processes import running
from tests.servers import wait_for, wait_for_guard

# Tests of several checkouts may run on one machine.
SERVER = f"la-test-{os.getpid()}"
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start_model(tmp_path: Path) -> Iterator[Start]:
    """Starts a process in which Triton would run a Python model, and waits until it differs from the test's own."""
    started = []

    def start(model: str = "tensorrt_llm", script: str = "read line") -> subprocess.Popen[bytes]:
        stub = tmp_path / model / "triton_python_backend_stub"
        stub.parent.mkdir()
        stub.write_text(f"#!/bin/sh\n{script}\n")
        stub.chmod(0o755)
        started.append(
            process := subprocess.Popen(
                [stub, f"/models/{model}/1/model.py"],
                env=os.environ | {MARK: SERVER},
                stdin=subprocess.PIPE,
                start_new_session=True,
            )
        )
        wait_for(lambda: process.pid in model_processes(SERVER))
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    # A child that has lost its parent counts as a model until it has ended too.
    wait_for(lambda: not model_processes(SERVER))


def kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def test_model_processes_are_found_by_their_servers_mark(start_model):
    model = start_model()

    assert model_processes(SERVER) == {model.pid: "tensorrt_llm"}
    assert model_processes("la-other") == {}


def test_a_child_that_a_model_forked_is_no_model(start_model):
    """Until it runs a program of its own it has its parent's name, arguments and environment; it ends at any time."""
    parent = start_model(script="(sleep 600; :) &\nread line")
    wait_for(lambda: len(psutil.Process(parent.pid).children(recursive=True)) == 2)
    fork, _ = psutil.Process(parent.pid).children(recursive=True)

    assert fork.cmdline() == psutil.Process(parent.pid).cmdline()
    assert model_processes(SERVER) == {parent.pid: "tensorrt_llm"}


def test_a_forked_child_is_no_model_if_its_parent_was_seen_before_it_ran_the_model(start_model, monkeypatch):
    parent = start_model(script="(sleep 600; :) &\nread line")
    wait_for(lambda: len(psutil.Process(parent.pid).children(recursive=True)) == 2)
    names, read = iter([b"bash\n"]), processes._read

    def first_as_bash(pid: int, name: str) -> bytes:
        content = read(pid, name)
        return next(names, content) if (pid, name) == (parent.pid, "comm") else content

    monkeypatch.setattr(processes, "_read", first_as_bash)

    assert model_processes(SERVER) == {}
    assert model_processes(SERVER) == {parent.pid: "tensorrt_llm"}


def test_killed_processes_have_ended_and_do_not_count_for_the_next_server(start_model):
    killed = [start_model(f"model_{number}", "sleep 600 &\nread line") for number in range(4)]

    kill_processes_of(SERVER)

    assert marked_processes(SERVER) == []
    assert model_processes(SERVER) == {}
    assert [process.wait() for process in killed] == [-signal.SIGKILL] * 4


def test_dead_models_are_named_in_the_order_of_their_deaths(start_model):
    """The later ones may have died because of the first, whatever their process ids."""
    front, target, other = (start_model(name) for name in ("tensorrt_llm_bls", "tensorrt_llm_engine", "preprocessing"))
    watch = ModelWatch(SERVER)
    assert watch.dead_models(0.0) == ()

    kill(target)
    assert watch.dead_models(PATIENCE_S) == ()
    kill(front)
    assert watch.dead_models(PATIENCE_S) == ()

    assert watch.dead_models(0.0) == ("tensorrt_llm_engine", "tensorrt_llm_bls")
    assert model_processes(SERVER) == {other.pid: "preprocessing"}


def test_a_model_that_one_check_missed_has_not_died(start_model, monkeypatch):
    start_model()
    watch = ModelWatch(SERVER)
    watch.dead_models(0.0)
    with monkeypatch.context() as context:
        context.setattr("pipeline.server.watch.model_processes", lambda server_id: {})
        assert watch.dead_models(PATIENCE_S) == ()

    assert watch.dead_models(0.0) == ()


def end_of(server: subprocess.Popen[bytes], spec: GuardSpec) -> guard._End:
    """The end for which a guard waits."""
    fds, folder = os.pipe(), os.open(spec.folder, os.O_PATH)
    try:
        with Path(spec.folder, LOG).open("ab") as log:
            return guard._wait_for_end(server, [fds[0]], folder, spec, log)
    finally:
        for fd in (*fds, folder):
            os.close(fd)


@pytest.mark.parametrize("is_ready", [False, True])
def test_a_server_whose_model_died_is_to_end_unless_it_is_not_ready_and_ends_by_itself(start_model, tmp_path, is_ready):
    model = start_model()
    nowhere = "" if is_ready else "http://127.0.0.1:1"
    limits = {"hang_seconds": PATIENCE_S, "watch_seconds": 0.01, "degraded_seconds": 0.0}
    spec = GuardSpec([], {}, str(tmp_path), "", SERVER, url=nowhere, **limits)
    with running(["sleep", "600"]) as server, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(end_of, server, spec)
        wait_for_guard(SERVER)
        kill(model)
        if not is_ready:
            wait_for_guard(SERVER)
            server.kill()
        end = waiting.result(PATIENCE_S)

    assert not end.wanted
    assert end.reason == (
        "the process of the model tensorrt_llm died; the log may say why, else memory was too small" if is_ready else ""
    )


def test_a_service_that_fails_is_to_start_again_once_it_has_been_ready(monkeypatch, tmp_path):
    monkeypatch.setattr(ServiceWatch, "fails", lambda watch: "it did not answer")
    spec = GuardSpec([], {}, str(tmp_path), "", SERVER, watch_seconds=0.01)
    with running(["sleep", "0.2"]) as server:
        assert end_of(server, spec) == guard._End()  # by itself
    (tmp_path / READY_FILE).touch()
    with running(["sleep", "600"]) as server:
        assert end_of(server, spec) == guard._End("it did not answer", restart=True)


class FakeServer:
    """A server that is ready, the clock, and the seconds that a check takes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, url: str = "http://fake") -> None:
        self.now, self.answers = 0.0, True
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(module, "answers", lambda url: self.answers)
        self.watch = HangWatch(SERVER, url, hang_seconds=60.0)
        assert self.watch.is_ready()

    def found(self, seconds: int) -> str:
        """What the watch finds within a time, called once a second."""
        for _ in range(seconds):
            self.now += 1.0
            if how := self.watch.hangs():
                return how
        return ""


def test_a_server_that_does_not_answer_hangs(monkeypatch):
    server = FakeServer(monkeypatch)
    assert server.found(100) == ""

    server.answers = False
    assert server.found(24) == ""
    server.answers = True  # one answer is enough
    assert server.found(10) == ""
    server.answers = False
    assert server.found(40) == "it did not answer for 30 s"


def test_a_server_with_a_suspended_model_hangs(start_model, monkeypatch):
    model = start_model()
    server = FakeServer(monkeypatch)
    assert server.found(10) == ""

    os.kill(model.pid, signal.SIGSTOP)
    wait_for(lambda: is_suspended(model.pid))
    assert server.found(40) == "it did not answer for 30 s"


def test_a_server_whose_crash_does_not_end_hangs(monkeypatch):
    server = FakeServer(monkeypatch)
    code = "import os, signal, time; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGABRT}); time.sleep(600)"
    with running([sys.executable, "-S", "-c", code], env={MARK: SERVER}) as process:
        wait_for(lambda: is_crashing(process.pid))
        assert server.found(40) == "it did not answer for 30 s"
    assert not is_crashing(process.pid)


def test_a_server_that_was_suspended_with_its_guard_does_not_hang(monkeypatch):
    server = FakeServer(monkeypatch)
    assert server.found(10) == ""

    server.answers = False
    server.now += 3600.0
    assert server.found(25) == ""


def test_a_service_without_an_address_does_not_hang(monkeypatch):
    assert FakeServer(monkeypatch, url="").found(100) == ""


def test_entries_in_discovery_are_removed_from_a_folder_and_from_etcd(tmp_path):
    received = []

    class Etcd(Handler):
        def do_POST(self) -> None:
            received.append((self.path, self.read()))
            self.answer(status=404)  # a lease that has ended

    entry, leftovers = tmp_path / "entry", tmp_path / "leftovers"
    entry.touch()
    with serving(Etcd) as port:
        url = f"http://127.0.0.1:{port}/v3/lease/revoke"
        leftovers.write_text(
            f'http://127.0.0.1:1/v3/lease/revoke {{"ID": "7"}}\n{url} {{"ID": "7"}}\n{tmp_path}/ent*\n'
        )
        remove_leftovers(leftovers)

    assert received == [("/v3/lease/revoke", b'{"ID": "7"}')]
    assert not entry.exists()
