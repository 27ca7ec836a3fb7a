"""Time to first token through each interface, with a stand-in for the servers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from pipeline.bench.api_overhead import GATEWAY, OPENAI, TRITON, cost_of, endpoints_of, times_to_first_token
from pipeline.errors import ServerError
from pipeline.server.state import ServerState
from tests.http_server import Handler, serving
from tests.server_states import state_of

DELAYS_S = {TRITON: 0.0, GATEWAY: 0.02, OPENAI: 0.06}


class Server(Handler):
    """Streams an empty event, then a text after the delay of its endpoint."""

    asked: list[tuple[str, dict[str, Any]]]
    mute: tuple[str, ...] = ()

    def do_POST(self) -> None:
        body = json.loads(self.read())
        endpoint = OPENAI if self.path == "/v1/completions" else TRITON if self.headers["lookahead-key"] else GATEWAY
        type(self).asked.append((endpoint, body))
        self.send_response(400 if body.get("model") == "wrong" else 200)
        self.end_headers()
        time.sleep(DELAYS_S[endpoint])
        if body.get("model") == "refused":
            self.wfile.write(b'data: {"error": {"message": "the queue is full"}}\n\n')
            return
        is_silent = (body.get("prompt") or body["text_input"]).startswith(type(self).mute)
        for text in ("", "" if is_silent else "x"):
            event = {"choices": [{"text": text}]} if endpoint == OPENAI else {"text_output": text}
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        if endpoint == OPENAI:
            self.wfile.write(b"data: [DONE]\n\n")


@pytest.fixture
def port() -> Iterator[int]:
    Server.asked = []
    with serving(Server) as port:
        yield port


def state_at(port: int, key: str = "secret", model: str = "m") -> ServerState:
    return state_of({"http": f"127.0.0.1:{port}", "key": key}, http_port=port, model=model)


def test_each_way_is_asked_as_often_and_timed_up_to_its_first_text(port):
    times = times_to_first_token(endpoints_of(state_at(port), f"http://127.0.0.1:{port}/v1"), 4)

    assert {name: len(values) for name, values in times.items()} == {TRITON: 4, GATEWAY: 4, OPENAI: 4}
    assert all(value >= 1000 * DELAYS_S[name] for name, values in times.items() for value in values)
    prompts = [body.get("prompt") or body["text_input"] for _, body in Server.asked]
    assert len(set(prompts)) == len(prompts) == 15  # with the warm-up
    assert all(("model" in body) is (endpoint == OPENAI) for endpoint, body in Server.asked)


def test_the_cost_of_a_way_is_what_its_median_adds_to_tritons():
    costs = cost_of({TRITON: [1.0, 2.0, 9.0], OPENAI: [5.0, 8.0, 8.5, 40.0]})

    assert costs[TRITON] == {"median_ms": 2.0, "p90_ms": pytest.approx(7.6), "added_ms": 0.0}
    assert costs[OPENAI] == {"median_ms": 8.25, "p90_ms": pytest.approx(30.55), "added_ms": 6.25}


def test_without_a_gateway_and_an_openai_api_there_is_one_way(port):
    assert [endpoint.name for endpoint in endpoints_of(state_at(port, key=""), None)] == [TRITON]


def test_answers_without_text_are_left_out(port, monkeypatch):
    monkeypatch.setattr(Server, "mute", ("1", "2", "3", "4", "5"))  # about half of the prompts begin so

    times = times_to_first_token(endpoints_of(state_at(port), None), 12)

    assert all(0 < len(values) < 12 for values in times.values())
    monkeypatch.setattr(Server, "mute", ("",))
    with pytest.raises(ServerError, match="returned no text"):
        times_to_first_token(endpoints_of(state_at(port), None), 1)


def test_a_refusal_is_said(port):
    with pytest.raises(ServerError, match="returned status 400"):
        times_to_first_token(endpoints_of(state_at(port, model="wrong"), f"http://127.0.0.1:{port}/v1"), 1)


def test_an_error_in_the_stream_is_said(port):
    with pytest.raises(ServerError, match=r"/v1/completions refused the request: .*the queue is full"):
        times_to_first_token(endpoints_of(state_at(port, model="refused"), f"http://127.0.0.1:{port}/v1"), 1)


def test_a_server_that_is_gone_is_said():
    with pytest.raises(ServerError, match="cannot be reached"):
        times_to_first_token(endpoints_of(state_at(1), None), 1)
