"""A whole chat is the aggregated stream of the front end, so that neither a text nor a part of a call becomes a
call."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from pipeline.gateway.upstream import BrokenOff
from tests.unit.gateway.gateways import behind, events, json_answer, send, streamed

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HEAD = {"id": "chatcmpl-1", "created": 5, "model": "m", "object": "chat.completion.chunk", "system_fingerprint": None}
DONE = b"data: [DONE]\n\n"
TOOLS = [{"type": "function", "function": {"name": "f"}}]


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(HEAD | fields, separators=(",", ":")).encode() + b"\n\n"


def choice(text: str | None, reason: str | None = None, *tokens: str) -> dict[str, Any]:
    log_probs = {"content": [{"token": token} for token in tokens], "refusal": None} if tokens else None
    return {
        "index": 0,
        "delta": {"role": "assistant", "content": text},
        "finish_reason": reason,
        "logprobs": log_probs,
    }


WHOLE = [
    event(choices=[choice('{"name": "', None, "a", "b")], usage=None),
    b": keep-alive\n\n",
    b'event: token_ids\ndata: {"a":1}\n\n',
    event(choices=[choice('Ann"}\n\n', "stop", "c")], usage=None, nvext={"engine_data": {"x": 1}}) + event(choices=[]),
    event(choices=[], usage={"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}),
    DONE,
]


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_a_whole_chat_is_the_aggregated_stream(size):
    data = b"".join(WHOLE)
    back = behind(lambda request: events(*(data[place : place + size] for place in range(0, len(data), size))))

    given = send(back, "POST", CHAT, json={"model": "m"})

    assert (back.body["stream"], back.body["stream_options"]) == (True, {"include_usage": True})
    assert (given.status_code, given.headers["content-type"]) == (200, "application/json")
    assert given.headers["content-length"] == str(len(given.content))
    assert given.json() == {
        "id": "chatcmpl-1",
        "created": 5,
        "model": "m",
        "object": "chat.completion",
        "system_fingerprint": None,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "reasoning_content": None, "content": '{"name": "Ann"}\n\n'},
                "finish_reason": "stop",
                "logprobs": {"content": [{"token": "a"}, {"token": "b"}, {"token": "c"}], "refusal": None},
            }
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
        "nvext": {"engine_data": {"x": 1}},
    }


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_chunk_without_tokens_leaves_the_log_probabilities_of_the_others(place):
    """The front end sends null in place of the list with an end token that comes alone."""
    empty = {"index": 0, "delta": {"role": "assistant"}, "logprobs": {"content": None, "refusal": None}}
    pieces = [event(choices=[choice("a", None, "a")]), event(choices=[choice("b", "stop", "b")])]
    pieces.insert(place, event(choices=[empty]))

    found = send(behind(lambda request: events(*pieces, DONE)), "POST", CHAT, json={"model": "m"}).json()

    assert found["choices"][0]["logprobs"] == {"content": [{"token": "a"}, {"token": "b"}], "refusal": None}


def test_the_choices_of_a_whole_chat_are_aggregated_each():
    back = behind(lambda request: events(*WHOLE))

    found = send(back, "POST", CHAT, json={"model": "m", "n": 2}).json()

    assert [(each["index"], each["message"]["content"]) for each in found["choices"]] == [
        (0, '{"name": "Ann"}\n\n'),
        (1, '{"name": "Ann"}\n\n'),
    ]
    assert found["usage"] == {"prompt_tokens": 3, "completion_tokens": 8, "total_tokens": 11}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    "fields", [{}, {"tools": TOOLS, "tool_choice": "none"}, {"tools": TOOLS}, {"stream": False}, {"stream": None}]
)
def test_whole_responses_are_asked_for_as_streams(path, fields):
    back = behind(lambda request: streamed(a=1))

    assert send(back, "POST", path, json={"model": "m", **fields}).json()["a"] == 1
    assert (back.body["stream"], back.body["stream_options"]) == (True, {"include_usage": True})


def test_options_of_a_stream_without_one_are_left_to_the_front_end_which_refuses_them():
    back = behind(lambda request: json_answer(400, {"message": "only with stream", "code": 400}))

    assert send(back, "POST", CHAT, json={"model": "m", "stream_options": {"include_usage": True}}).status_code == 400
    assert "stream" not in back.body


def test_a_whole_completion_is_the_aggregated_stream():
    def part(index: int, text: str, *tokens: str, **more: Any) -> dict[str, Any]:
        values = {"tokens": list(tokens), "token_logprobs": [-1.0] * len(tokens), "top_logprobs": [], "text_offset": []}
        return {"index": index, "text": text, "logprobs": values} | more

    pieces = [
        event(id="c-1", object="text_completion", choices=[part(0, "a", "a")], usage=None),
        event(id="c-0", object="text_completion", choices=[part(0, "b", "b", finish_reason="length")], usage=None),
        event(id="c", object="text_completion", choices=[], usage={"total_tokens": 7}),
    ]
    found = send(behind(lambda request: events(*pieces, DONE)), "POST", COMPLETIONS, json={"logprobs": 0}).json()

    assert (found["id"], found["object"], found["usage"]) == ("c-1", "text_completion", {"total_tokens": 7})
    assert [(each["index"], each["text"], each["finish_reason"]) for each in found["choices"]] == [
        (0, "ab", "length"),
    ]
    assert found["choices"][0]["logprobs"] == {
        "tokens": ["a", "b"],
        "token_logprobs": [-1.0, -1.0],
        "top_logprobs": [{"a": -1.0}, {"b": -1.0}],
        "text_offset": [0, 1],
    }


def test_parts_of_calls_are_joined():
    def part(index: int, arguments: str, **more: Any) -> bytes:
        function = {"arguments": arguments} | ({"name": f"f{index}"} if more else {})
        delta = {"role": "assistant", "tool_calls": [{"index": index, "function": function} | more]}
        return event(choices=[{"index": 0, "delta": delta, "finish_reason": None}])

    ends = event(choices=[choice("", "tool_calls")])
    parts = [part(0, '{"a":', id="0", type="function"), part(0, "1}"), part(1, "{}", id="1", type="function"), ends]
    back = behind(lambda request: events(*parts, DONE))

    (found,) = send(back, "POST", CHAT, json={"model": "m", "tools": TOOLS}).json()["choices"]

    assert (found["finish_reason"], found["message"]["content"]) == ("tool_calls", None)
    assert found["message"]["tool_calls"] == [
        {"id": "0", "type": "function", "function": {"name": "f0", "arguments": '{"a":1}'}},
        {"id": "1", "type": "function", "function": {"name": "f1", "arguments": "{}"}},
    ]


def test_a_whole_chat_that_breaks_off_is_sent_again_from_its_start():
    def answer(request: httpx.Request) -> httpx.Response:
        return events(*WHOLE[:2], BrokenOff("gone")) if len(back.requests) == 1 else events(*WHOLE)

    back = behind(answer)

    (found,) = send(back, "POST", CHAT, json={"model": "m"}).json()["choices"]
    assert found["message"]["content"] == '{"name": "Ann"}\n\n'
    assert len(back.requests) == 2


def test_an_error_within_a_whole_chat_is_a_status():
    error = event(choices=[], nvext={"engine_data": {"refusal": {"status": 503, "message": "busy: why"}}})
    given = send(behind(lambda request: events(*WHOLE[:2], error)), "POST", CHAT, json={"model": "m"})

    assert (given.status_code, given.json()["error"]["message"]) == (503, "busy: why")


def test_a_chat_without_text_has_an_empty_text():
    back = behind(lambda request: events(event(choices=[choice(None, "length")]), DONE))

    (found,) = send(back, "POST", CHAT, json={"model": "m"}).json()["choices"]
    assert (found["message"]["content"], found["finish_reason"]) == ("", "length")
