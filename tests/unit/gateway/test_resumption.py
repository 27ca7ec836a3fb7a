"""An OpenAI response goes on after its workers have died: the client gets each part of the output once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import anyio
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.gateway.upstream import BrokenOff, Unreachable
from tests.unit.gateway.gateways import GENERATE, Behind, Clock, behind, event, events, json_answer, send, streamed

LOST = {"error": {"message": "Internal server error", "type": "internal_server_error", "code": 500}}
DONE = b"data: [DONE]\n\n"
TOKENS = ["the ", "", "\u00e4\U0001f600", "rat", " at", " the", "", " tea"]
CUTS = st.lists(st.integers(0, len(TOKENS)), max_size=5).map(sorted)


def log_probs(path: str, tokens: Sequence[str], start: int) -> dict[str, Any]:
    values = [-float(start + place) for place in range(len(tokens))]
    if path == "/v1/completions":
        return {"tokens": list(tokens), "token_logprobs": values, "text_offset": []}
    return {"content": [{"token": token, "logprob": value} for token, value in zip(tokens, values, strict=True)]}


def chunks(path: str, cuts: Sequence[int], name: str) -> list[bytes]:
    """The events of a whole stream. cuts: numbers of tokens before which an event ends. name: of the response."""
    made = []
    for place, (start, end) in enumerate(zip([0, *cuts], [*cuts, len(TOKENS)], strict=True)):
        text = "".join(TOKENS[start:end])
        choice: dict[str, Any] = {"index": 0, "logprobs": log_probs(path, TOKENS[start:end], start)}
        choice |= {"text": text} if path == "/v1/completions" else {"delta": {"role": "assistant", "content": text}}
        choice["finish_reason"] = "length" if place == len(cuts) else None
        made.append(event({"id": name, "created": len(name), "choices": [choice]}))
    made.append(event({"id": name, "choices": [], "usage": {"completion_tokens": len(TOKENS)}}))
    return [*made, DONE]


def received(body: str) -> tuple[dict[int, str], dict[int, list[Any]], dict[int, str], set[str], int]:
    """Text, log probabilities and finish reason of each choice, ids, and number of reports of usage."""
    texts: dict[int, str] = {}
    values: dict[int, list[Any]] = {}
    finished: dict[int, str] = {}
    ids, num_usages = set(), 0
    for line in body.split("\n\n"):
        if not line.startswith("data: {"):
            continue
        chunk = json.loads(line.removeprefix("data: "))
        assert "error" not in chunk, chunk
        ids.add(chunk["id"])
        num_usages += "usage" in chunk
        for choice in chunk["choices"]:
            index = choice["index"]
            assert index not in finished
            texts[index] = texts.get(index, "") + (choice["text"] if "text" in choice else choice["delta"]["content"])
            found = choice["logprobs"]
            values.setdefault(index, []).extend(found["token_logprobs"] if "tokens" in found else found["content"])
            if choice["finish_reason"] is not None:
                finished[index] = choice["finish_reason"]
    return texts, values, finished, ids, num_usages


def num_empty(body: str) -> int:
    """Number of parts of choices in which there is nothing for a client."""
    chunks = [json.loads(line.removeprefix("data: ")) for line in body.split("\n\n") if line.startswith("data: {")]
    choices = [choice for chunk in chunks for choice in chunk.get("choices", ())]
    texts = [choice["text"] if "text" in choice else choice["delta"]["content"] for choice in choices]
    return sum(
        not (text or any(choice["logprobs"].values()) or choice["finish_reason"])
        for choice, text in zip(choices, texts, strict=True)
    )


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@given(first=CUTS, second=CUTS, place=st.integers(0, 12), breaks=st.booleans())
def test_a_stream_that_breaks_off_anywhere_goes_on_with_the_rest(path, first, second, place, breaks):
    whole = chunks(path, [], "whole")
    begun = chunks(path, first, "first")[:-1]  # with the mark of its end it is complete
    end: bytes | Exception = BrokenOff("gone") if breaks else event(LOST)

    def answer(request: httpx.Request) -> httpx.Response:
        if len(back.requests) == 1:
            return events(*begun[:place], end)
        return events(*chunks(path, second, "second"))

    back = behind(answer)
    given = send(back, "POST", path, json={"model": "m", "stream": True})

    want, got = received(b"".join(whole).decode()), received(given.text)
    assert got[:3] == want[:3]
    assert len(got[3]) == got[4] == 1
    if place:  # the client has a part, so the second response is cut
        assert num_empty(given.text) <= num_empty(b"".join(begun[:place]).decode())
    assert given.text.endswith(DONE.decode())
    assert [request.content for request in back.requests] == [back.requests[0].content] * 2
    assert len({request.headers["x-request-id"] for request in back.requests}) == 1


@pytest.mark.parametrize(
    "lost",
    [
        lambda: json_answer(500, LOST),
        lambda: json_answer(503, {"message": "Service temporarily unavailable", "code": 503}),
        lambda: httpx.Response(200, stream=events(BrokenOff("gone")).stream),
        lambda: events(b'data: {"choices":[', BrokenOff("gone")),
        lambda: events(event({"choices": [{"index": 0, "text": "the"}]}), BrokenOff("gone")),
        lambda: events(event({"choices": [{"index": 0, "text": "the"}]}), event(LOST)),
    ],
)
def test_a_whole_response_is_asked_for_again_twice(lost):
    def answer(request: httpx.Request) -> httpx.Response:
        return lost() if len(back.requests) <= num_lost else streamed(a=1)

    back, num_lost = behind(answer), 2
    given = send(back, "POST", "/v1/completions", json={"model": "m"})
    assert (given.json()["a"], given.json()["choices"]) == (1, [])
    assert given.headers["content-length"] == str(len(given.content))
    back, num_lost = behind(answer), 3
    assert send(back, "POST", "/v1/completions", json={"model": "m"}).status_code in (500, 503)
    assert len(back.requests) == 3


@pytest.mark.parametrize(("gone_s", "status", "num_requests"), [(50, 200, 2), (200, 503, 3)])
def test_a_lost_request_waits_for_a_triton_server(monkeypatch, gone_s, status, num_requests):
    """Without one, the workers of several machines lose it within seconds. Another machine may have one, so it is sent
    again after a minute in all."""
    clock, sleep = Clock(), anyio.sleep
    back_at, started = clock.now + gone_s, clock.now

    async def pass_time(duration_s: float) -> None:
        clock.now += duration_s
        await sleep(0)

    def answer(request: httpx.Request) -> httpx.Response:
        return json_answer(500, LOST) if clock.now < back_at else streamed(a=1)

    back = Behind(answer, is_ready=lambda: clock.now >= back_at)
    monkeypatch.setattr(anyio, "current_time", clock)
    monkeypatch.setattr(anyio, "sleep", pass_time)
    assert send(back, "POST", "/v1/completions", json={"model": "m"}).status_code == status
    assert len(back.requests) == num_requests
    assert min(gone_s, 60) <= clock.now - started < min(gone_s, 60) + 2


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("num_events", [None, 0, 1])
@pytest.mark.parametrize("fields", [{}, {"stream": True}])
def test_a_request_on_which_a_front_end_that_is_alive_breaks_off_is_sent_once_more(path, num_events, fields):
    """num_events: None if it breaks off before the headers."""

    def answer(request: httpx.Request) -> httpx.Response:
        if num_events is None:
            raise BrokenOff("gone")
        return events(*chunks(path, [3], "a")[:num_events], BrokenOff("gone"))

    back = Behind(answer, is_alive=True)

    given = send(back, "POST", path, json={"model": "m", **fields})
    found = json.loads(given.text.split("data: ")[-1])["error"]
    assert found["code"] == 500
    assert "broke off its response" in found["message"]
    assert found["message"].endswith(given.headers["x-request-id"])
    assert given.status_code == 200 or given.headers["x-should-retry"] == "false"
    assert len(back.requests) == 2


@pytest.mark.parametrize("fields", [{}, {"stream": True}])
def test_a_front_end_that_runs_again_before_its_end_is_noticed_gets_the_request_again(fields):
    """As after a suspension of the gateway."""
    path = "/v1/completions"

    def answer(request: httpx.Request) -> httpx.Response:
        whole = chunks(path, [3], "a")
        return events(*whole) if len(back.requests) > 1 else events(*whole[:1], BrokenOff("gone"))

    back = Behind(answer, is_alive=True)

    given = send(back, "POST", path, json={"model": "m", **fields})
    assert given.status_code == 200
    assert "error" not in given.text
    assert given.text.count(" tea") == 2  # its text and its log probability
    assert len(back.requests) == 2


@pytest.mark.parametrize("num_events", [0, 1, 3])
@pytest.mark.parametrize("fields", [{}, {"stream": True}])
def test_a_response_without_an_end_is_sent_again(num_events, fields):
    """The front end (1.4.2) ends a response like a complete one, without an error, if it gives up a silent worker."""
    path = "/v1/completions"

    def answer(request: httpx.Request) -> httpx.Response:
        whole = chunks(path, [3], "a")
        return events(*(whole if len(back.requests) > 1 else whole[:num_events]))

    back = Behind(answer, is_alive=True)

    given = send(back, "POST", path, json={"model": "m", **fields})
    assert given.status_code == 200
    texts, _, finished, _, num_usages = received(given.text if fields else f"data: {given.text}")
    assert (texts, finished, num_usages) == ({0: "".join(TOKENS)}, {0: "length"}, 1)
    assert len(back.requests) == 2


def test_a_response_that_never_has_an_end_is_an_error_after_three_attempts():
    back = behind(lambda request: events(*chunks("/v1/completions", [3], "a")[:1]))

    given = send(back, "POST", "/v1/completions", json={"model": "m"})
    assert given.status_code == 503
    assert len(back.requests) == 3


@pytest.mark.parametrize("has_begun", [False, True])
@pytest.mark.parametrize(("status", "shown"), [(400, "why"), (500, "the server failed on this request")])
def test_an_error_of_a_worker_is_answered_at_once(has_begun, status, shown):
    begun = event({"choices": [{"index": 0, "text": "the", "finish_reason": None}]}) if has_begun else b""
    error = event({"choices": [], "nvext": {"engine_data": {"refusal": {"status": status, "message": "why"}}}})
    back = behind(lambda request: events(begun, error))

    for number, fields in enumerate(({}, {"stream": True}), 1):
        given = send(back, "POST", "/v1/completions", json={"model": "m", **fields})
        found = json.loads(given.text.split("data: ")[-1])["error"]
        assert found["code"] == status
        assert shown in found["message"]
        assert len(back.requests) == number


@pytest.mark.parametrize(("gone_s", "status"), [(50, 200), (70, 503)])
def test_a_request_waits_for_a_front_end_that_is_gone(monkeypatch, gone_s, status):
    """Processes start again in a few seconds, and on a busy machine in most of a minute."""
    clock, sleep = Clock(), anyio.sleep
    back_at = clock.now + gone_s

    async def pass_time(duration_s: float) -> None:
        clock.now += 1
        await sleep(0)

    def answer(request: httpx.Request) -> httpx.Response:
        if clock.now < back_at:
            raise Unreachable("refused")
        return streamed(a=1)

    monkeypatch.setattr(anyio, "current_time", clock)
    monkeypatch.setattr(anyio, "sleep", pass_time)
    assert send(behind(answer), "POST", "/v1/completions", json={"model": "m"}).status_code == status


def test_a_stream_with_a_part_of_a_tool_call_ends_with_the_error():
    call = {"index": 0, "id": "call-1", "function": {"name": "f", "arguments": ""}}
    begun = event({"id": "a", "choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}]})
    back = behind(lambda request: events(begun, event(LOST)))

    given = send(back, "POST", "/v1/chat/completions", json={"model": "m", "stream": True})

    assert len(back.requests) == 1
    assert json.loads(given.text.split("data: ")[-1])["error"]["code"] == 500


def test_a_long_event_arrives_whole():
    choice = {"index": 0, "text": "data: {" * 300_000, "finish_reason": None, "logprobs": None}
    long = event({"id": "a", "choices": [choice]})
    cut = long.index(b"data: {", 1_500_000)
    back = behind(lambda request: events(long[:cut], long[cut:], DONE))

    given = send(back, "POST", "/v1/completions", json={"model": "m", "stream": True})
    assert given.content == long + DONE


def test_a_request_to_triton_is_not_sent_again():
    def answer(request: httpx.Request) -> httpx.Response:
        raise BrokenOff("gone")

    back = behind(answer)
    assert send(back, "POST", GENERATE, json={}).status_code == 503
    assert len([request for request in back.requests if request.method == "POST"]) == 1
