"""Servers of the tiny random model with the torch engine, and requests to them."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import tritonclient.grpc as grpc

from pipeline.config.folders import Folders
from pipeline.config.resolution import resolve_config
from pipeline.errors import ServerError
from pipeline.repository.names import TARGET_MODEL
from pipeline.server.client import Completion, Protocol, TextQuery, complete
from pipeline.server.metrics import read_metrics
from pipeline.server.processes import model_processes
from pipeline.server.server import RunningServer
from pipeline.server.startup import PreparedServer, launch, prepare
from pipeline.server.state import ServerState, is_ready
from tests.patience import PATIENCE_S
from tests.servers import FREE_PORTS, check_log, left_over, wait_for

CONTEXT_LEN = 1 << 15
# Number of output tokens that take the engine much longer than a busy machine suspends a process. It is for requests,
# without an end token, whose client must leave or be refused before the output ends.
LONG = CONTEXT_LEN - 1000
# Some tests ask the inner models; what is closed to clients is tested in test_gateway.py.
CPU = ("backend=torch", "device=cpu", "server.gateway.inner_models=true", *FREE_PORTS)
TORCH = (
    *CPU,
    f"model.checkpoint.config.max_position_embeddings={CONTEXT_LEN}",
    f"model.max_position_embeddings={CONTEXT_LEN}",
    f"engine.max_seq_len={CONTEXT_LEN}",
)
PROMPT = "the rat at the tea 日本 🤷🏽‍♀️ the rat at the tea"


def prepared(where: Folders, *overrides: str) -> PreparedServer:
    return prepare(resolve_config("tiny-random-llama", "latency", (*TORCH, *overrides), where=where), where)


def with_settings(served: PreparedServer, where: Folders, *overrides: str) -> PreparedServer:
    """The same engine and repository with other settings of the section `server`, for what runs beside the models."""
    return replace(served, resolved=resolve_config("tiny-random-llama", "latency", (*TORCH, *overrides), where=where))


@contextmanager
def running(served: PreparedServer, where: Folders, folder: Path) -> Iterator[RunningServer]:
    """A server for the length of a block, after which nothing of it is left."""
    server = launch(served, where, folder)
    try:
        yield server
    finally:
        server.stop()
    assert not left_over(server.state.server_id)
    check_log(server.log_path)


def becomes_ready(state: ServerState) -> bool:
    """Wait until a server is ready. One that is may not answer within the limit of `is_ready` on a busy machine."""
    return wait_for(lambda: is_ready(state))


def url_of(state: ServerState, protocol: Protocol) -> str:
    return state.grpc_url if protocol == "grpc" else state.http_url


def ask(server: RunningServer, protocol: Protocol = "grpc", **fields: object) -> Completion:
    query = TextQuery(**({"text_input": PROMPT, "max_tokens": 24, "return_statistics": True} | fields))  # type: ignore[arg-type]
    return complete(query, url_of(server.state, protocol), protocol, timeout_s=PATIENCE_S)


def streamed(url: str, model: str, inputs: Sequence[object], **keywords: Any) -> list[Any]:
    """Results and errors of one request over a gRPC stream, by NVIDIA's client."""
    answers: list[Any] = []
    with grpc.InferenceServerClient(url) as client:
        client.start_stream(lambda result, error: answers.append(error or result))
        client.async_stream_infer(model, inputs, **keywords)
        client.stop_stream()
    return answers


def metrics_page(server: RunningServer) -> str:
    def page() -> str | None:
        answer = httpx.get(server.state.metrics_url, timeout=PATIENCE_S, trust_env=False)
        return answer.text if answer.status_code == 200 else None  # the gateway waits for Triton's page for seconds

    return wait_for(page)


def num_cancelled(server: RunningServer) -> int:
    """Requests whose client left, since the start of the server."""
    pattern = r'^lookahead_requests_total\{outcome="cancelled",.*\} (\d+)'
    return sum(map(int, re.findall(pattern, metrics_page(server), re.M)))


def metrics_of(url: str) -> dict[str, float]:
    """`read_metrics`, again where a busy machine takes longer than its time limit."""

    def read() -> dict[str, float] | None:
        with suppress(ServerError):
            return read_metrics(url)
        return None

    return wait_for(read)


def settled_metrics(server: RunningServer, **more_than: float) -> dict[str, float]:
    """Metrics are entered a little after a request has ended, the engine's once a second: wait until those that are
    named have risen above a value, and all stand still. Names are without the prefix `lookahead_`. On a busy machine
    they are entered later, as much as the reads of this process are late or several times that."""
    bounds = {f"lookahead_{name}": bound for name, bound in more_than.items()}
    values, since, late_s = metrics_of(server.state.metrics_url), time.monotonic(), 0.0
    deadline = since + PATIENCE_S
    while time.monotonic() < since + 1.3 + 5 * late_s or any(values.get(name, 0) <= bounds[name] for name in bounds):
        assert time.monotonic() < deadline, values
        asked = time.monotonic()
        time.sleep(0.2)
        found = metrics_of(server.state.metrics_url)
        late_s = max(late_s / 2, time.monotonic() - asked - 0.2)
        if found != values:
            values, since = found, time.monotonic()
    return values


def reason_of_restart(log_path: Path, number: int) -> str:
    """Reason of a server's restart, after which there was none but those of starts that failed: on busy machines Triton
    aborts or waits without end at its start."""
    reasons = re.findall(r"^lookahead: restart \d+ \((.*)\)$", log_path.read_text(), re.M)
    for later in reasons[number:]:
        assert later.startswith("signal 6,") or later.endswith("before it was ready"), reasons
    return str(reasons[number - 1])


@contextmanager
def suspended(server: RunningServer) -> Iterator[None]:
    """The engine takes no request within a block. After a second Triton regards it as dead, and the server is started
    again."""
    pids = [pid for pid, name in model_processes(server.state.server_id).items() if name == TARGET_MODEL]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):  # the server has ended
                os.kill(pid, signal.SIGCONT)
