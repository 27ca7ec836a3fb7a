"""Clients of a server that is missing or has ended."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import grpc
import pytest
from grpc import StatusCode
from tritonclient.grpc import service_pb2, service_pb2_grpc

from pipeline.errors import RequestError, ServerError
from pipeline.gateway.upstream_errors import unavailable
from pipeline.server import client
from pipeline.server.client import TextQuery, complete
from tests.http_server import Handler, serving
from tests.patience import PATIENCE_S

QUERY = TextQuery("the rat", 4)


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that nobody listens on, and that no other process can take meanwhile."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield int(taken.getsockname()[1])


class Refusing(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Ends each stream with a status, or answers with an error."""

    def __init__(self, code: grpc.StatusCode | None, sentence: str) -> None:
        self._code, self._sentence = code, sentence

    def ModelStreamInfer(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:
        assert len(list(requests)) == 1
        if self._code is not None:
            context.abort(self._code, self._sentence)
        yield service_pb2.ModelStreamInferResponse(error_message=self._sentence)


@contextmanager
def serving_grpc(refusing: Refusing) -> Iterator[int]:
    server = grpc.server(ThreadPoolExecutor(1))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(refusing, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port
    finally:
        server.stop(None)


def answer_of(code: grpc.StatusCode | None, sentence: str) -> None:
    """Send a request to a server that refuses it."""
    with serving_grpc(Refusing(code, sentence)) as port:
        complete(QUERY, f"127.0.0.1:{port}", "grpc", timeout_s=PATIENCE_S)


def test_a_port_without_a_server_is_a_server_error_on_both_protocols(closed_port):
    with pytest.raises(ServerError, match=rf"127.0.0.1:{closed_port} cannot be reached"):
        complete(QUERY, f"127.0.0.1:{closed_port}", "grpc", timeout_s=PATIENCE_S)
    with pytest.raises(ServerError, match="cannot be reached"):
        complete(QUERY, f"http://127.0.0.1:{closed_port}", "http", timeout_s=PATIENCE_S)


def test_a_server_that_accepts_a_connection_late_is_reached():
    """As one behind a slow network, or a gateway that waits for the processor."""
    with socket.create_server(("127.0.0.1", 0)) as late, serving_grpc(Refusing(None, "it was reached")) as port:

        def forward() -> None:
            there = late.accept()[0]
            time.sleep(0.3)
            here = socket.create_connection(("127.0.0.1", port))
            threading.Thread(target=copy, args=(here, there), daemon=True).start()
            copy(there, here)

        threading.Thread(target=forward, daemon=True).start()
        with pytest.raises(RequestError, match="it was reached"):
            complete(QUERY, f"127.0.0.1:{late.getsockname()[1]}", "grpc", timeout_s=PATIENCE_S)


def copy(source: socket.socket, target: socket.socket) -> None:
    with target, suppress(OSError):  # either end may be closed meanwhile
        while data := source.recv(1 << 16):
            target.sendall(data)


def test_the_port_of_http_is_named_as_such():
    with serving(Handler) as port, pytest.raises(ServerError, match=f"does not speak gRPC; .* http://127.0.0.1:{port}"):
        complete(TextQuery("hi", 4), f"127.0.0.1:{port}", "grpc")


@pytest.mark.parametrize(
    ("status", "body", "error", "sentence"),
    [
        (404, b'{"detail": "Not Found"}', ServerError, r"generate_stream returned status 404: b'{\"detail"),
        (200, b'data: {"choices": []}\n\n', ServerError, "returned status 200: b'data: "),
        (200, b"data: [DONE]\n\n", ServerError, "returned status 200"),
        (404, b'{"error": {"message": "there is nothing", "code": 404}}', RequestError, "^there is nothing$"),
        (401, b'{"error": "a key is needed"}', ServerError, r"a key is needed\. .* from LOOKAHEAD_API_KEY"),
    ],
)
def test_an_answer_of_another_program_is_a_sentence(status, body, error, sentence):
    class Other(Handler):
        def do_POST(self) -> None:
            self.read()
            self.answer(body, status)

    with serving(Other) as port, pytest.raises(error, match=sentence):
        complete(QUERY, f"http://127.0.0.1:{port}", "http", timeout_s=PATIENCE_S)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_proxy_is_asked_for_other_machines_only(monkeypatch, closed_port, protocol):
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.setblocking(False)
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.getsockname()[1]}")
        scheme = "http://" if protocol == "http" else ""
        with pytest.raises(ServerError, match="cannot be reached"):
            complete(QUERY, f"{scheme}127.0.0.1:{closed_port}", protocol, timeout_s=PATIENCE_S)
        with pytest.raises(BlockingIOError):
            proxy.accept()
        proxy.settimeout(PATIENCE_S)
        accepted: list[None] = []
        accepting = threading.Thread(target=lambda: accepted.append(proxy.accept()[0].close()))
        accepting.start()
        with pytest.raises(ServerError):
            complete(QUERY, f"{scheme}host.invalid:80", protocol, timeout_s=PATIENCE_S)
        accepting.join()
        assert accepted


@pytest.mark.parametrize("code", [StatusCode.UNAVAILABLE, StatusCode.UNKNOWN, StatusCode.CANCELLED])
def test_a_server_that_ends_while_it_answers_is_a_server_error(code):
    with pytest.raises(ServerError, match=r"127.0.0.1:\d+ cannot be reached: .*gone"):
        answer_of(code, "gone")


def test_a_server_that_starts_again_is_not_called_unreachable():
    with pytest.raises(ServerError, match=r"127.0.0.1:\d+: the server is starting again") as caught:
        answer_of(StatusCode.UNAVAILABLE, str(unavailable()))
    assert "reached" not in str(caught.value)


def test_a_deadline_is_a_server_error_that_says_so():
    with pytest.raises(ServerError, match="did not answer in time"):
        answer_of(StatusCode.DEADLINE_EXCEEDED, "late")


def test_a_missing_key_names_the_variable():
    with pytest.raises(
        ServerError, match=r"an API key is needed\. The commands take an API key from LOOKAHEAD_API_KEY"
    ):
        answer_of(StatusCode.UNAUTHENTICATED, "an API key is needed")


def test_a_refused_request_is_a_request_error_with_the_servers_sentence():
    with pytest.raises(RequestError, match=r"^max_tokens is 0$"):
        answer_of(None, "max_tokens is 0")


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"seed": -1}, r"seed is -1; it must be in 0 \.\. 18446744073709551615"),
        ({"seed": 10**23}, "seed is 100000000000000000000000"),
        ({"max_tokens": 99999999999}, r"max_tokens is 99999999999; .* 2147483647"),
        ({"top_k": -(2**40)}, "top_k is -1099511627776"),
        ({"text_input": "a\udcff"}, r"text_input holds '\\udcff'"),
        ({"stop_words": ["fine", "\ud800"]}, r"stop_words holds '\\ud800'"),
    ],
)
def test_what_a_tensor_cannot_hold_is_refused_before_anything_is_sent(wrong, sentence, protocol):
    query = TextQuery(**({"text_input": "the rat", "max_tokens": 4} | wrong))
    with pytest.raises(RequestError, match=sentence):
        complete(query, "127.0.0.1:1" if protocol == "grpc" else "http://127.0.0.1:1", protocol, timeout_s=PATIENCE_S)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize(
    "url",
    [
        *("http://[::1", "http://x:99999", "x:port", "http://", "", "http://[v1.x]:8000", "a b:1", "//:8000"),
        *("localhost", "grpc://localhost:8001", "dns:///localhost:8001"),
    ],
)
def test_what_is_no_address_is_refused_with_a_sentence(url, protocol):
    with pytest.raises(ServerError, match=r"is not an address of a server.*Use host:port"):
        complete(QUERY, url, protocol, timeout_s=PATIENCE_S)


def test_the_key_of_the_environment_goes_with_every_request():
    assert client.key_headers({client.KEY_VARIABLE: "k"}) == {"authorization": "Bearer k"}
    assert client.key_headers({client.KEY_VARIABLE: "k 1"}) == {"authorization": "Bearer k 1"}
    assert client.key_headers({}) == client.key_headers({client.KEY_VARIABLE: ""}) == {}


@pytest.mark.parametrize("key", ["ключ", "a\nb", " a", "a ", "a\tb", "a\r", "\udc80"])
def test_a_key_that_no_header_can_hold_is_refused(key):
    with pytest.raises(ServerError, match="LOOKAHEAD_API_KEY is not an API key"):
        client.key_headers({client.KEY_VARIABLE: key})
