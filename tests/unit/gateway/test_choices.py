"""Requests for several outputs: those with n to the front end and the combined response, and num_return_sequences."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from pipeline.gateway import http_app
from pipeline.gateway.openai_body import choice_requests
from pipeline.gateway.openai_output import joined_usage
from pipeline.gateway.tenants import Tenants
from pipeline.gateway.upstream import BrokenOff
from tests.unit.gateway.gateways import (
    GENERATE,
    INFER,
    STREAM,
    Behind,
    api_key,
    behind,
    event,
    events,
    json_answer,
    send,
    spec_of,
)
from tests.unit.gateway.gateways import streamed as one_chunk

CHAT = "/v1/chat/completions"


def whole(request: httpx.Request) -> httpx.Response:
    """An answer with the seed as its text, and one token for each unit of it."""
    seed = json.loads(request.content)["seed"]
    usage = {"prompt_tokens": 5, "completion_tokens": seed, "total_tokens": 5 + seed}
    choice = {"index": 0, "delta": {"content": f"text {seed}"}, "finish_reason": "stop"}
    return one_chunk(id=f"id {seed}", created=seed, choices=[choice], usage=usage)


def streamed(request: httpx.Request) -> httpx.Response:
    """The same in pieces, two of them at once."""
    seed = json.loads(request.content)["seed"]
    head = {"id": f"id {seed}", "created": seed}
    pieces = [
        event(head | {"choices": [{"index": 0, "delta": {"content": word}, "finish_reason": reason}]})
        for word, reason in (("text ", None), (str(seed), None), ("", "stop"))
    ]
    usage = event(head | {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": seed}})
    return events(pieces[0], pieces[1] + pieces[2], usage, b"data: [DONE]\n\n")


def ask(server: Behind, spec: Any = None, **body: Any) -> httpx.Response:
    body = {"seed": 7, "n": 3, "max_tokens": 9} | body
    return send(server, "POST", CHAT, spec, json=body, headers={"x-api-key": "a"})


def test_choices_of_a_long_request_are_refused_before_they_are_written():
    server = Behind(whole)

    answer = ask(server, spec_of(max_body_bytes=1 << 20), n=128, prediction="a" * 200_000)

    assert answer.status_code == 413
    assert "128 choices of 200" in answer.json()["error"]["message"]
    assert not server.requests


@pytest.mark.parametrize("value", [[3], [[[], 3]]])  # Triton reads both
@pytest.mark.parametrize("path", [STREAM, INFER])
def test_each_output_of_a_request_counts_as_a_request(path: str, value: list[Any]):
    number = {"name": "num_return_sequences", "datatype": "INT32", "shape": [1, 1], "data": value}
    body = {"inputs": [number]} if path == INFER else {"num_return_sequences": value}
    server, spec = behind(), spec_of(api_key("alice", max_concurrent_requests=2))

    answer = send(server, "POST", path, spec, json=body, headers={"x-api-key": "alice"})

    assert answer.status_code == 400
    assert "3 choices; each counts as a request, and 2 at once" in answer.json()["error"]
    assert not server.requests


def test_several_outputs_of_generate_are_refused_before_they_are_computed():
    server = behind()

    assert (
        "send num_return_sequences to generate_stream"
        in send(server, "POST", GENERATE, json={"num_return_sequences": 2}).json()["error"]
    )
    assert not server.requests
    assert send(server, "POST", GENERATE, json={"num_return_sequences": 1}).status_code == 200


def test_each_choice_is_a_request_with_a_seed_and_an_id_of_its_own():
    server = Behind(whole)

    ask(server)

    assert sorted(json.loads(request.content)["seed"] for request in server.requests) == [7, 8, 9]
    assert len({request.headers["x-request-id"] for request in server.requests}) == 3
    assert all("n" not in json.loads(request.content) for request in server.requests)


def test_seeds_go_round_as_64_bits_do_and_a_request_without_one_gets_none():
    assert [sent["seed"] for sent in choice_requests({"seed": (1 << 63) - 1}, 2)] == [(1 << 63) - 1, -(1 << 63)]
    assert choice_requests({"a": 1}, 2) == [{"a": 1}] * 2


def test_the_answers_are_joined_in_order_with_the_prompt_counted_once():
    answer = ask(Behind(whole)).json()

    assert [(choice["index"], choice["message"]["content"]) for choice in answer["choices"]] == [
        (0, "text 7"),
        (1, "text 8"),
        (2, "text 9"),
    ]
    assert answer["usage"] == {"prompt_tokens": 5, "completion_tokens": 24, "total_tokens": 29}


def test_lines_of_a_stream_end_at_line_feeds_only():
    chunk = {"choices": [{"index": 0, "delta": {"content": "é\u2028\u2029\x85\x1e\n"}}]}

    answer = ask(Behind(lambda request: events(event(chunk), b"data: [DONE]\n\n")), n=1, stream=True)

    first, *others = answer.text.splitlines()
    assert json.loads(first.removeprefix("data: ")) == chunk
    assert others == ["", "data: [DONE]", ""]


def test_a_stream_carries_the_index_of_each_choice_one_id_and_one_usage():
    answer = ask(Behind(streamed), stream=True)

    assert answer.headers["content-type"] == "text/event-stream"
    *chunks, last = [text.removeprefix("data: ") for text in answer.text.removesuffix("\n\n").split("\n\n")]
    assert last == "[DONE]"
    values = [json.loads(chunk) for chunk in chunks]
    texts = {0: "", 1: "", 2: ""}
    for value in values[:-1]:
        (choice,) = value["choices"]
        texts[choice["index"]] += choice["delta"]["content"]
    assert texts == {0: "text 7", 1: "text 8", 2: "text 9"}
    assert len({(value["id"], value["created"]) for value in values}) == 1
    assert values[-1]["choices"] == []
    assert values[-1]["usage"] == {"prompt_tokens": 5, "completion_tokens": 24, "total_tokens": 29}


def test_the_usage_of_a_choice_whose_stream_breaks_after_it_counts_once():
    usage = event({"id": "id 8", "choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 8}})
    broken: list[int] = []

    def breaking(request: httpx.Request) -> httpx.Response:
        if json.loads(request.content)["seed"] != 8 or broken:
            return streamed(request)
        broken.append(8)
        return events(usage, BrokenOff("gone"))

    answer = ask(Behind(breaking), stream=True)

    assert broken
    assert json.loads(answer.text.split("data: ")[-2])["usage"]["completion_tokens"] == 24


def test_the_usage_of_a_single_choice_is_last_too():
    """The front end sends the rest of a cut tool call after it."""

    def early(request: httpx.Request) -> httpx.Response:
        usage, rest = {"choices": [], "usage": {"prompt_tokens": 5}}, {"choices": [{"index": 0, "delta": {}}]}
        return events(event(usage), event(rest), b"data: [DONE]\n\n")

    answer = ask(Behind(early), n=1, stream=True)

    rest, usage, end = answer.text.removesuffix("\n\n").split("\n\n")
    assert ("delta" in rest, "prompt_tokens" in usage, end) == (True, True, "data: [DONE]")


def test_one_choice_that_fails_is_the_answer():
    def failing(request: httpx.Request) -> httpx.Response:
        if json.loads(request.content)["seed"] == 8:
            return json_answer(400, {"error": {"message": "top_k is -1"}})
        return whole(request)

    assert ask(Behind(failing)).json()["error"]["message"] == "top_k is -1"


def test_a_stream_in_which_a_choice_fails_ends_with_the_error():
    def failing(request: httpx.Request) -> httpx.Response:
        if json.loads(request.content)["seed"] == 8:
            return events(event({"choices": [{"index": 0, "delta": {}}]}), BrokenOff("gone"))
        return streamed(request)

    last = ask(Behind(failing), stream=True).text.removesuffix("\n\n").split("\n\n")[-1]

    assert "starting again" in json.loads(last.removeprefix("data: "))["error"]["message"]


def test_statistics_come_for_each_choice():
    def with_figures(request: httpx.Request) -> httpx.Response:
        seed = json.loads(request.content)["seed"]
        return one_chunk(choices=[{"index": 0}], nvext={"engine_data": {"seed": seed}})

    assert ask(Behind(with_figures)).json()["nvext"] == {
        "choices": [{"engine_data": {"seed": seed}} for seed in (7, 8, 9)]
    }


@pytest.mark.parametrize(
    ("prompt", "number"), [("a", 1), ([5, 6], 1), (["a"], 1), (["a", "b"], 2), ([[5, 6], [7], [8]], 3), ([], 1)]
)
def test_each_prompt_of_a_list_counts_as_a_request_of_its_tenant(prompt, number):
    status = ask(Behind(whole), spec_of(api_key("a", max_concurrent_requests=2 * number)), n=2, prompt=prompt)
    refused = ask(Behind(whole), spec_of(api_key("a", max_concurrent_requests=2 * number - 1)), n=2, prompt=prompt)

    assert (status.status_code, refused.status_code) == (200, 400)


@pytest.mark.parametrize(
    ("prompt", "n", "max_open", "expected"),
    [("a", 128, 68, 32), (["a"] * 100, 2, 68, 32), (["a"] * 12, 1, 9, 9)],
)
def test_only_some_choices_are_computed_at_the_same_time(prompt, n, max_open, expected):
    """An engine whose queue does not hold all of them would refuse the request each time it is sent."""
    running = most = 0

    async def counted(request: httpx.Request) -> httpx.Response:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.005)
        running -= 1
        return whole(request)

    spec = spec_of()
    spec = spec.model_copy(update={"deployment": spec.deployment.model_copy(update={"max_open_requests": max_open})})
    answer = ask(Behind(counted), spec, n=n, prompt=prompt)

    assert [choice["index"] for choice in answer.json()["choices"]] == list(range(len(prompt) * n))
    assert most == expected


def test_tokens_a_minute_count_all_choices_and_places_are_released():
    spec = spec_of(api_key("a", max_tokens_per_minute=100))
    tenants = Tenants(spec.api_keys, spec.config)
    tenant = tenants.of_key("a")

    with tenants.admit(tenant, 8, 10, 100, 3):
        assert (tenant.num_running, tenants.num_running) == (3, 3)
        with pytest.raises(http_app.Refusal, match="used up"), tenants.admit(tenant, 0, 65, 100):
            pass
    assert (tenant.num_running, tenants.num_running) == (0, 0)


def test_details_of_usage_are_summed():
    details = [{"accepted_prediction_tokens": 2, "rejected_prediction_tokens": 1}, None]
    usages = [{"prompt_tokens": 1, "completion_tokens": 4, "completion_tokens_details": detail} for detail in details]

    assert joined_usage(usages, 2) == {
        "prompt_tokens": 1,
        "completion_tokens": 8,
        "completion_tokens_details": {"accepted_prediction_tokens": 2, "rejected_prediction_tokens": 1},
        "total_tokens": 9,
    }
