"""Servers that are refused, killed or tampered with: one message each, and nothing is left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from pipeline.config.folders import Folders, folders
from pipeline.config.resolution import resolve_config
from pipeline.engine.build import build_engine
from pipeline.errors import RequestError, ServerError
from pipeline.repository.names import FRONT_MODEL, STOCK_FRONT_MODEL, STOCK_TARGET_MODEL, TARGET_MODEL
from pipeline.server.client import TextQuery, stream_text
from pipeline.server.processes import model_processes
from pipeline.server.server import RunningServer, stop_server
from pipeline.server.startup import PreparedServer, launch
from pipeline.server.state import ServerState, find_server, is_ready
from tests.integration.servers import LONG, PROMPT, TORCH, ask, prepared, reason_of_restart, suspended, with_settings
from tests.patience import PATIENCE_S
from tests.servers import left_over, wait_for, wait_for_guard

pytestmark = [pytest.mark.triton, pytest.mark.slow]


def test_a_second_server_in_the_same_place_is_refused_and_a_taken_port_named(server, served, shared_where, tmp_path):
    with pytest.raises(ServerError, match="already runs"):
        launch(served, shared_where, server.run_dir)
    taken = resolve_config(
        "tiny-random-llama", "latency", (*TORCH, f"server.http_port={server.state.http_port}"), where=shared_where
    )
    with pytest.raises(ServerError, match=rf"Port {server.state.http_port} \(server.http_port\)"):
        launch(replace(served, resolved=taken), shared_where, tmp_path)


def test_after_kill_9_of_its_guard_nothing_is_left_of_a_server(served, shared_where, tmp_path):
    killed = launch(with_settings(served, shared_where, "server.max_restarts=0"), shared_where, tmp_path)

    psutil.Process(killed.state.guard_pid).send_signal(signal.SIGKILL)
    killed.guard.wait()

    # The kernel ends the server, and the next command removes the rest.
    assert find_server(tmp_path) is None
    assert not left_over(killed.state.server_id)


@pytest.fixture(scope="module")
def restarting(
    served: PreparedServer, shared_where: Folders, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    """For tests after which it runs again."""
    server = launch(served, shared_where, tmp_path_factory.mktemp("restarting"))
    yield server
    server.stop()
    assert not left_over(server.state.server_id)


def ready_state(folder: Path) -> ServerState:
    """State of the server of a folder, once it answers: a busy one may not do so within the limit of `is_ready`."""
    return wait_for(lambda: state if (state := find_server(folder)) is not None and is_ready(state) else None)


def num_restarts(server: RunningServer) -> int:
    return ready_state(server.run_dir).restarts


def test_clients_get_an_error_when_the_engine_dies_and_the_server_restarts(restarting):
    number = num_restarts(restarting) + 1
    models = {model: pid for pid, model in model_processes(restarting.state.server_id).items()}
    stock = {"preprocessing", "postprocessing", STOCK_TARGET_MODEL, STOCK_FRONT_MODEL}
    assert models.keys() == {TARGET_MODEL, FRONT_MODEL, *stock}

    wait_for_guard(restarting.state.server_id)
    chunks = stream_text(TextQuery(PROMPT, LONG, strategy="none", end_id=-1), restarting.state.grpc_url, "grpc")
    next(chunks)
    os.kill(models[TARGET_MODEL], signal.SIGKILL)

    with pytest.raises((RequestError, ServerError)):
        list(chunks)
    # The guard starts the server again at the same address, and the state says so.
    wait_for(lambda: num_restarts(restarting) >= number)
    # On a busy machine Triton may fall over a lock of the dead process before the guard looks.
    reasons = rf"the process(es)? of the models? {TARGET_MODEL}\b.* died|signal 6,"
    assert re.match(reasons, reason := reason_of_restart(restarting.log_path, number)), reason
    assert ask(restarting, max_tokens=4).finish_reason == "length"


def test_a_server_that_gives_up_a_call_of_a_model_that_runs_is_started_again(restarting):
    """As after a suspension of all processes. It would free inputs that the model still reads, or crash later."""
    number = num_restarts(restarting) + 1
    with suspended(restarting), pytest.raises((RequestError, ServerError)):
        ask(restarting, max_tokens=4)

    wait_for(lambda: num_restarts(restarting) >= number)
    assert f"Triton gave up a call of {TARGET_MODEL}, whose process runs" in restarting.log_path.read_text()
    assert reason_of_restart(restarting.log_path, number) == "signal 9, Killed"
    assert ask(restarting, max_tokens=4).finish_reason == "length"


def test_an_engine_that_was_tampered_with_is_named(served, shared_where, tmp_path):
    file = next(served.artifact.engine_dir.glob("*.safetensors"))
    whole = file.read_bytes()
    file.unlink()  # it may be a hard link shared with others
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    try:
        with pytest.raises(ServerError, match="was changed after the build"):
            launch(served, shared_where, tmp_path)
    finally:
        file.write_bytes(whole)
    assert find_server(tmp_path) is None


def test_an_engine_that_was_built_again_is_not_served_with_the_repository_of_the_old_one(shared_where, tmp_path):
    where = replace(shared_where, engines=tmp_path / "engines")
    running = launch(prepared(where, "server.max_restarts=1"), where, tmp_path / "run")
    other = resolve_config("tiny-random-llama", "latency", (*TORCH, "engine.max_seq_len=512"), where=where)
    assert build_engine(other, where).outcome != "reused"
    for process in (process for process in left_over(running.state.server_id) if isinstance(process, psutil.Process)):
        if "tritonserver" in process.name():
            process.send_signal(signal.SIGKILL)

    wait_for(lambda: running.poll() is not None)
    assert "was built again with other settings" in running.log_path.read_text()
    running.stop()


# The command line, which lets running requests finish for as long as a busy machine needs.
PATIENT = f"""
from pipeline import cli
from pipeline.server import server
server.DRAIN_SECONDS = {PATIENCE_S}
cli.main()
"""


@contextmanager
def foreground(where: Folders) -> Iterator[tuple[subprocess.Popen[str], ServerState]]:
    """A process of `lookahead serve`, and the state of its server."""
    environment = os.environ | {"LOOKAHEAD_ENGINES": str(where.engines), "LOOKAHEAD_CACHE": str(where.cache)}
    command = [sys.executable, "-c", PATIENT, "serve", "--model", "tiny-random-llama"]
    command += [part for override in (*TORCH, "drafting.planner=fixed") for part in ("--set", override)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, env=environment, cwd=folders().home, **pipes, text=True)  # type: ignore[call-overload]
    folder = where.engines / ".run"
    try:
        assert process.stdout is not None
        assert "ready: tiny-random-llama" in process.stdout.readline()
        yield process, ready_state(folder)
    finally:
        process.kill()
        stop_server(folder)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_the_command_takes_its_server_with_it(shared_where, how):
    with foreground(shared_where) as (process, state):
        process.send_signal(how)
        _, notes = process.communicate(timeout=PATIENCE_S)
        assert ("stopping the server" in notes) == (how == signal.SIGINT)
        wait_for(lambda: not left_over(state.server_id))
        assert not Path(shared_where.engines / ".run" / "server.json").exists()
        assert process.returncode == {signal.SIGKILL: -9}.get(how, 130)


def test_sigterm_lets_a_running_request_finish(shared_where):
    with foreground(shared_where) as (process, state):
        chunks = stream_text(TextQuery(PROMPT, 1500, strategy="none", end_id=-1), state.grpc_url, "grpc")
        next(chunks)
        process.terminate()
        *_, last = chunks
        assert last.finish_reason == "length"
        assert process.wait(PATIENCE_S) == 0
        assert not left_over(state.server_id)
