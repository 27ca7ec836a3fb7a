"""Attacks on a server behind its gateway, as by default; each gets an answer and affects no other client."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx
import numpy as np
import psutil
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from pipeline.gateway.bodies import MAX_DEPTH
from pipeline.gateway.spec import TRITON_KEY_HEADER
from pipeline.repository.names import ENSEMBLE, FRONT_MODEL, TARGET_MODEL
from pipeline.server.client import TextQuery, complete, stream_text
from pipeline.server.processes import model_processes, shm_files
from pipeline.server.server import RunningServer
from pipeline.server.startup import PreparedServer
from tests.integration.gateway_requests import url_of, works
from tests.integration.servers import LONG, PROMPT, becomes_ready, running, streamed, with_settings
from tests.patience import PATIENCE_S
from tests.servers import processes_of

pytestmark = [pytest.mark.triton, pytest.mark.slow]


@pytest.fixture(scope="module")
def closed(shared_where, served, tmp_path_factory) -> Iterator[RunningServer]:
    """A server with the defaults of the gateway. The tests kill it about as often as a guard would start it again."""
    settings = ("server.gateway.inner_models=false", "server.gateway.header_timeout_s=5")
    closed = with_settings(served, shared_where, *settings, "server.max_restarts=20")
    with running(closed, shared_where, tmp_path_factory.mktemp("closed")) as server:
        yield server


@pytest.mark.parametrize("verb", ["generate", "generate_stream", "infer"])
@pytest.mark.parametrize("body", [b"[" * 150_000, b'{"a":' * 150_000, b'{"text_input":' + b"[" * (MAX_DEPTH + 1)])
def test_nested_bodies_do_not_reach_triton(closed, verb, body):
    assert httpx.post(url_of(closed, verb), content=body, timeout=PATIENCE_S).status_code == 400
    assert works(closed)


@pytest.mark.parametrize("header", [{"host": "evil.example"}, {"origin": "https://evil.example"}])
def test_a_web_page_of_another_site_reaches_nothing(closed, header):
    answer = httpx.post(url_of(closed), json={"text_input": "x", "max_tokens": 1}, headers=header, timeout=PATIENCE_S)

    assert answer.status_code == 403
    assert "localhost" in answer.json()["error"]


def test_a_client_that_takes_the_server_for_a_proxy_is_served(closed):
    with httpx.Client(proxy=closed.state.http_url, timeout=PATIENCE_S) as client:
        assert client.get("http://localhost/v2/health/ready").status_code == 200
        assert client.get("http://evil.example/v2/health/ready").status_code == 403


def test_huge_and_endless_bodies_are_cut_off(closed):
    host, port = "127.0.0.1", closed.state.http_port
    connection = http.client.HTTPConnection(host, port, timeout=PATIENCE_S)
    connection.putrequest("POST", f"/v2/models/{FRONT_MODEL}/generate")
    connection.putheader("content-length", str(1 << 40))
    connection.endheaders()
    assert connection.getresponse().status == 413

    def endless() -> Iterator[bytes]:
        while True:
            yield b" " * (1 << 20)

    with suppress(httpx.WriteError, httpx.ReadError):  # it was answered and closed while we were still sending
        assert httpx.post(url_of(closed), content=endless(), timeout=PATIENCE_S).status_code == 413
    assert works(closed)


def test_idle_connections_are_closed_and_block_no_client(closed):
    idle = [socket.create_connection(("127.0.0.1", closed.state.http_port)) for _ in range(50)]

    assert works(closed)

    for connection in idle:
        connection.settimeout(PATIENCE_S)
        with suppress(ConnectionResetError):
            assert connection.recv(10) == b""


def test_control_interfaces_are_closed_before_and_behind_the_gateway(closed):
    state = closed.state
    for address in (state.http_url, f"http://{state.triton.http}"):
        for path in ("systemsharedmemory/region/x/register", "logging", "trace/setting", "repository/index"):
            assert httpx.post(f"{address}/v2/{path}", json={"key": "/x"}, timeout=PATIENCE_S).status_code in (403, 404)
    for address in (state.grpc_url, state.triton.grpc):
        with triton.InferenceServerClient(address) as client:
            for call in ("get_system_shared_memory_status", "get_log_settings", "get_model_repository_index"):
                with pytest.raises(InferenceServerException, match=r"not found|restricted"):
                    getattr(client, call)()
    body = {"text_input": PROMPT, "max_tokens": 4}
    behind = f"http://{state.triton.http}/v2/models/{FRONT_MODEL}/generate"
    assert httpx.post(behind, json=body, timeout=PATIENCE_S).status_code == 403
    assert (
        httpx.post(behind, json=body, headers={TRITON_KEY_HEADER: state.triton.key}, timeout=PATIENCE_S).status_code
        == 200
    )


def test_inner_models_cannot_be_called_or_seen(closed):
    for model in ("tensorrt_llm", "preprocessing", "postprocessing"):
        assert (
            httpx.post(
                url_of(closed, model=model), json={"stop": True, "id": "bls-0.0"}, timeout=PATIENCE_S
            ).status_code
            == 404
        )
        with triton.InferenceServerClient(closed.state.grpc_url) as client:
            assert client.is_model_ready(FRONT_MODEL)
            assert not client.is_model_ready(model)
            with pytest.raises(InferenceServerException, match="there is no model"):
                client.get_model_metadata(model)
            with pytest.raises(InferenceServerException, match="there is no model"):
                client.infer(model, [])
    assert works(closed)


def test_shared_memory_of_others_is_neither_readable_nor_named(closed):
    assert {path.stat().st_mode & 0o077 for path in shm_files(closed.state.server_id) if not path.is_symlink()} == {0}
    tensor = triton.InferInput("text_input", [1, 1], "BYTES")
    tensor.set_shared_memory(shm_files(closed.state.server_id)[0].name, 8)

    (error,) = streamed(closed.state.grpc_url, FRONT_MODEL, [tensor])

    assert "shared memory" in str(error)
    assert closed.state.server_id not in str(error)


def test_one_client_cannot_stop_anothers_request_by_its_id(closed):
    chunks = stream_text(TextQuery(PROMPT, 200, strategy="none", end_id=-1), closed.state.grpc_url, "grpc")
    text = next(chunks).text
    for number in range(20):
        body = {"id": f"bls-{number}.0", "stop": True, "text_input": "x", "max_tokens": 1}
        httpx.post(url_of(closed, model="tensorrt_llm"), json=body, timeout=PATIENCE_S)
    text += "".join(chunk.text for chunk in chunks)

    assert text == complete(TextQuery(PROMPT, 200, strategy="none", end_id=-1), closed.state.grpc_url, "grpc").text


ODD = [
    {"max_tokens": 1 << 40},
    {"max_tokens": 8.5},
    {"max_tokens": None},
    {"seed": -1},
    {"text_input": ["a", "b"]},
    {"text_input": {"a": 1}},
    {"messages": "[" * 100_000},
    {"stop_words": ["a", 3]},
    {"bad_words": ["a"] * 100_000},
    {"namespace": "n" * (1 << 20)},
    {"namespace": ["a", "b"]},
    {"parameters": 3},
    {"id": 3},
    {"strategy": "\x00"},
]


@pytest.mark.parametrize("odd", ODD, ids=[str(odd)[:30] for odd in ODD])
def test_odd_values_get_a_sentence_and_no_internal_text(closed, odd):
    for verb in ("generate", "generate_stream"):
        answer = httpx.post(url_of(closed, verb), json={"text_input": "a", "max_tokens": 4} | odd, timeout=PATIENCE_S)
        assert answer.status_code == 400
        assert len(answer.json()["error"]) < 600
        assert closed.state.server_id not in answer.text


def test_the_ensemble_is_for_clients_where_there_are_no_tenants(closed):
    body = {"text_input": PROMPT, "max_tokens": 4}
    assert httpx.post(url_of(closed, model=ENSEMBLE), json=body, timeout=PATIENCE_S).status_code == 200


def test_a_deadline_ends_a_request_and_frees_its_place(closed):
    body = {"text_input": PROMPT, "max_tokens": LONG, "strategy": "none", "end_id": -1}
    answer = httpx.post(url_of(closed), json=body, headers={"x-request-timeout": "0.01"}, timeout=PATIENCE_S)
    assert answer.status_code == 504
    assert works(closed)


def test_behind_eight_long_streams_a_short_request_waits_for_a_slice(closed):
    stop, begun, ended = threading.Event(), threading.Semaphore(0), []

    def long(number: int) -> None:
        while not stop.is_set():
            query = TextQuery(f"{PROMPT} {number}", LONG, strategy="none", end_id=-1)
            for place, _ in enumerate(stream_text(query, closed.state.grpc_url, "grpc")):
                if place == 0:
                    begun.release()
                if stop.is_set():
                    return
            ended.append(number)

    with ThreadPoolExecutor(8) as pool:
        streams = [pool.submit(long, number) for number in range(8)]
        for _ in streams:
            assert begun.acquire(timeout=PATIENCE_S)
        num_ended = len(ended)
        complete(TextQuery("short", 4, strategy="none"), closed.state.grpc_url, "grpc", timeout_s=PATIENCE_S)
        has_waited = len(ended) > num_ended
        stop.set()
        for stream in streams:
            stream.result()
    assert not has_waited


def test_a_stream_that_hands_its_place_on_brings_the_same_text(closed):
    query = TextQuery(PROMPT, 400, strategy="trie", end_id=-1)
    alone = complete(query, closed.state.grpc_url, "grpc").text

    with ThreadPoolExecutor(20) as pool:
        together = [pool.submit(complete, query, closed.state.grpc_url, "grpc") for _ in range(20)]

    assert {future.result().text for future in together} == {alone}


@pytest.mark.parametrize("victim", ["tritonserver", "engine", "gateway"])
def test_what_dies_comes_back_and_clients_are_answered_meanwhile(closed, victim):
    assert works(closed)
    assert closed.gateway is not None
    if victim == "gateway":
        pids = [p.pid for p in processes_of(closed.state.gateway_id) if "pipeline.gateway" in p.cmdline()]
    elif victim == "engine":
        pids = [pid for pid, model in model_processes(closed.state.server_id).items() if model == TARGET_MODEL]
    else:
        pids = [p.pid for p in processes_of(closed.state.server_id) if "tritonserver" in p.name()]
    os.kill(pids[0], signal.SIGKILL)

    codes = set()
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            answer = httpx.post(url_of(closed), json={"text_input": PROMPT, "max_tokens": 4}, timeout=PATIENCE_S)
        except httpx.HTTPError:
            codes.add(0)
        else:
            codes.add(answer.status_code)
            assert answer.status_code in (200, 503)
            if answer.status_code == 503:
                assert int(answer.headers["retry-after"]) > 0
            elif len(codes) > 1 or not psutil.pid_exists(pids[0]):
                break
        time.sleep(0.1)
    assert 200 in codes
    assert 0 not in codes or victim == "gateway"
    assert becomes_ready(closed.state)


def test_errors_of_one_request_leave_other_outputs_unchanged(closed):
    """Errors of one request leave the others' output as it is."""
    alone = complete(TextQuery(PROMPT, 100, strategy="none", end_id=-1), closed.state.grpc_url, "grpc").text
    stop = threading.Event()

    def attack() -> int:
        count = 0
        while not stop.is_set():
            odd = ODD[count % len(ODD)]
            httpx.post(url_of(closed), json={"text_input": "a", "max_tokens": 4} | odd, timeout=PATIENCE_S)
            count += 1
        return count

    with ThreadPoolExecutor(3) as pool:
        attackers = [pool.submit(attack) for _ in range(3)]
        texts = {
            complete(TextQuery(PROMPT, 100, strategy="none", end_id=-1), closed.state.grpc_url, "grpc").text
            for _ in range(5)
        }
        stop.set()
        assert all(attacker.result() > 0 for attacker in attackers)
    assert texts == {alone}


def test_tensors_of_the_wrong_shape_get_a_sentence_by_grpc(closed):
    tensor = triton.InferInput("text_input", [2, 3], "BYTES")
    tensor.set_data_from_numpy(np.full((2, 3), b"x", np.object_))

    (error,) = streamed(closed.state.grpc_url, FRONT_MODEL, [tensor])

    assert isinstance(error, InferenceServerException)
    assert works(closed)


def test_the_spec_with_the_key_is_for_its_owner_only(closed: RunningServer, served: PreparedServer):
    for path in (closed.run_dir / "services" / "gateway" / "gateway.json", closed.run_dir / "server.json"):
        assert path.stat().st_mode & 0o077 == 0
