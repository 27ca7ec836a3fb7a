"""Responses of the Responses API: events and whole responses, made of the chunks of a chat."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from pipeline.gateway.upstream import BrokenOff
from tests.unit.gateway.gateways import Behind, behind, event, events, json_answer, send

PATH = "/v1/responses"
HEAD = {"id": "chatcmpl-1a-2b", "created": 5, "model": "m", "object": "chat.completion.chunk"}
USAGE = {
    "prompt_tokens": 3,
    "completion_tokens": 4,
    "total_tokens": 7,
    "prompt_tokens_details": {"cached_tokens": 2},
    "completion_tokens_details": {"accepted_prediction_tokens": 1},
}
EVENT = TypeAdapter[Any](ResponseStreamEvent)


def chunk(delta: dict[str, Any], reason: str | None = None, tokens: list[str] | None = None) -> dict[str, Any]:
    log_probs = {
        "content": [{"token": token, "logprob": -1.0, "bytes": [], "top_logprobs": []} for token in tokens or ()]
    }
    choice = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": log_probs if tokens else None}
    return HEAD | {"choices": [choice]}


def call(index: int, arguments: str, **more: str) -> dict[str, Any]:
    return {"index": index, "type": "function", "function": {"arguments": arguments, **more}}


TEXT = [chunk({"role": "assistant", "content": ""}), chunk({"content": "the rat"}), chunk({"content": " at"}, "stop")]
CALLS = [
    chunk({"role": "assistant", "content": "I ask. "}),
    chunk({"tool_calls": [call(0, '{"a"', name="f") | {"id": "c1"}]}),
    chunk({"tool_calls": [call(0, ":1}")]}),
    chunk({"tool_calls": [call(1, "{}", name="g") | {"id": "c2"}]}, "tool_calls"),
]


def front_end(chunks: list[dict[str, Any]]) -> Behind:
    pieces = [*map(event, chunks), event(HEAD | {"choices": [], "usage": USAGE}), b"data: [DONE]\n\n"]
    return behind(lambda request: events(*pieces))


def whole(chunks: list[dict[str, Any]], **body: Any) -> dict[str, Any]:
    answer = send(front_end(chunks), "POST", PATH, json={"model": "m", "input": "a", **body})
    assert answer.status_code == 200, answer.text
    Response.model_validate(answer.json(), strict=True)
    found: dict[str, Any] = answer.json()
    return found


def stream(chunks: list[dict[str, Any]], **body: Any) -> list[dict[str, Any]]:
    answer = send(front_end(chunks), "POST", PATH, json={"model": "m", "input": "a", "stream": True, **body})
    assert answer.headers["content-type"].startswith("text/event-stream")
    *parts, rest = answer.text.split("\n\n")
    assert not rest
    found = []
    for part in parts:
        name, data = part.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
        EVENT.validate_python(found[-1])
    return found


def test_a_text_is_a_message():
    response = whole(TEXT, instructions="Be brief.")

    assert (response["id"], response["created_at"], response["status"]) == ("resp_1a2b", 5, "completed")
    assert response["instructions"] == "Be brief."
    assert response["incomplete_details"] is None
    (message,) = response["output"]
    assert (message["type"], message["role"], message["status"]) == ("message", "assistant", "completed")
    assert [part["text"] for part in message["content"]] == ["the rat at"]
    assert response["usage"] == {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 0, "accepted_prediction_tokens": 1},
        "total_tokens": 7,
    }


def test_an_output_that_the_limit_cuts_is_incomplete():
    response = whole([*TEXT[:2], chunk({"content": " at"}, "length")])

    assert (response["status"], response["output"][0]["status"]) == ("incomplete", "incomplete")
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert "completed_at" not in response


def test_an_empty_output_has_no_items():
    assert whole([TEXT[0], chunk({}, "stop")])["output"] == []


def test_log_probabilities_are_those_of_the_chat():
    chunks = [chunk({"content": "a"}, None, ["a"]), chunk({"content": "b"}, "stop", ["b"])]

    (message,) = whole(chunks, include=["message.output_text.logprobs"])["output"]

    assert [entry["token"] for entry in message["content"][0]["logprobs"]] == ["a", "b"]


def test_calls_follow_the_text_as_items():
    response = whole(CALLS, tools=[{"type": "function", "name": "f"}, {"type": "function", "name": "g"}])

    message, *calls = response["output"]
    assert message["content"][0]["text"] == "I ask. "
    assert [(item["call_id"], item["name"], item["arguments"]) for item in calls] == [
        ("c1", "f", '{"a":1}'),
        ("c2", "g", "{}"),
    ]
    assert len({item["id"] for item in response["output"]}) == 3


def test_the_events_of_a_text():
    kinds = [found["type"].removeprefix("response.") for found in stream(TEXT)]

    assert kinds == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]


PARTS = st.one_of(
    st.text("ab ", min_size=1, max_size=3).map(lambda text: [chunk({"content": text})]),
    st.just(CALLS[1:3]),
    st.just(CALLS[3:]),
)


@given(parts=st.lists(PARTS, max_size=5), reason=st.sampled_from(["stop", "length", "tool_calls"]))
def test_the_events_build_the_whole_response(parts, reason):
    chunks = [TEXT[0], *(each for part in parts for each in part), chunk({}, reason)]
    tools = [{"type": "function", "name": "f"}, {"type": "function", "name": "g"}]
    found = stream(chunks, tools=tools)

    assert [each["sequence_number"] for each in found] == list(range(len(found)))
    built: list[dict[str, Any]] = []
    for each in found:
        kind = each["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert each["output_index"] == len(built)
            assert (each["item"].get("content"), each["item"].get("arguments")) in (([], None), (None, ""))
            built.append(each["item"])
        elif kind == "content_part.added":
            assert each["part"]["text"] == ""
            built[-1]["content"].append(each["part"])
        elif kind == "output_text.delta":
            built[-1]["content"][0]["text"] += each["delta"]
        elif kind == "function_call_arguments.delta":
            built[-1]["arguments"] += each["delta"]
        elif kind == "output_item.done":
            assert each["item"] == built[-1] | {"status": each["item"]["status"]}
            built[-1] = each["item"]
        if "item_id" in each:
            assert each["item_id"] == built[-1]["id"]
    last = found[-1]["response"]
    assert last["output"] == built
    assert {**last, "completed_at": 0} == {**whole(chunks, tools=tools), "completed_at": 0}


def test_a_response_goes_on_after_its_worker_has_died():
    """The chat is sent again, and the client gets the rest."""

    def answer(request: Any) -> Any:
        if len(back.requests) == 1:
            return events(event(chunk({"role": "assistant", "content": "the r"})), BrokenOff("gone"))
        return events(*map(event, TEXT), b"data: [DONE]\n\n")

    back = behind(answer)
    given = send(back, "POST", PATH, json={"model": "m", "input": "a", "stream": True})

    found = [json.loads(line.removeprefix("data: ")) for line in given.text.split("\n") if line.startswith("data: ")]
    assert "".join(each["delta"] for each in found if each["type"] == "response.output_text.delta") == "the rat at"
    assert found[-1]["response"]["output"][0]["content"][0]["text"] == "the rat at"
    assert {request.url.path for request in back.requests} == {"/v1/chat/completions"}


def test_errors_have_openais_form():
    refused = send(behind(), "POST", PATH, json={"model": "m", "input": "a", "background": True})
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].startswith("background is not supported")

    back = behind(lambda request: json_answer(400, {"message": "Temperature must be between 0 and 2", "code": 400}))
    assert send(back, "POST", PATH, json={"model": "m", "input": "a"}).status_code == 400


@pytest.mark.parametrize("is_stream", [False, True])
def test_draft_statistics_are_those_of_the_chat(is_stream):
    figures = {"num_spec_steps": 3}
    chunks = [*TEXT[:2], chunk({}, "stop") | {"nvext": {"engine_data": {"speculative_decoding": figures}}}]
    options = {"draft_statistics": True}

    response = stream(chunks, **options)[-1]["response"] if is_stream else whole(chunks, **options)

    assert response["metrics"] == {"speculative_decoding": figures}
