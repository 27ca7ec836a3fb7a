"""Requests with several prompts: each is a request to the front end, and the response has the choices of all."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.unit.gateway.gateways import Behind, event, events, send, spec_of

COMPLETIONS = "/v1/completions"


def echo(request: httpx.Request) -> httpx.Response:
    """The prompt and the seed as the text."""
    body = json.loads(request.content)
    prompt, seed = body["prompt"], body.get("seed", 0)
    head = {"id": f"id {prompt}", "created": seed}
    usage = {"prompt_tokens": len(prompt), "completion_tokens": 2, "total_tokens": 2 + len(prompt)}
    choice = {"index": 0, "text": f"{prompt} {seed}", "finish_reason": "stop"}
    last = {"choices": [], "usage": usage}
    return events(event(head | {"choices": [choice]}), event(head | last), b"data: [DONE]\n\n")


@pytest.mark.parametrize("prompts", [["a", "bcd"], [[1], [2, 3, 4]]])
def test_choices_are_in_the_order_of_the_prompts(prompts: list[Any]):
    answer = send(Behind(echo), "POST", COMPLETIONS, json={"prompt": prompts, "n": 2, "seed": 5}).json()

    assert [(choice["index"], choice["text"]) for choice in answer["choices"]] == [
        (2 * place + number, f"{prompt} {5 + number}") for place, prompt in enumerate(prompts) for number in range(2)
    ]
    assert answer["usage"] == {"prompt_tokens": 4, "completion_tokens": 8, "total_tokens": 12}


def test_chunks_of_a_stream_have_one_id_and_the_last_one_the_usage_of_all_prompts():
    body = {"prompt": ["a", "bcd"], "stream": True, "stream_options": {"include_usage": True}}

    *parts, end = send(Behind(echo), "POST", COMPLETIONS, json=body).text.split("\n\n")[:-1]

    chunks = [json.loads(part.removeprefix("data: ")) for part in parts]
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert [[choice["index"] for choice in chunk["choices"]] for chunk in chunks] == [[0], [1], []]
    assert chunks[-1]["usage"] == {"prompt_tokens": 4, "completion_tokens": 4, "total_tokens": 8}
    assert end == "data: [DONE]"


@pytest.mark.parametrize("prompt", ["a", ["a"], [7, 8], []])
def test_one_prompt_is_one_request(prompt: Any):
    server = Behind(echo)

    answer = send(server, "POST", COMPLETIONS, json={"prompt": prompt}).json()

    assert [choice["index"] for choice in answer["choices"]] == [0]
    assert len(server.requests) == 1


def test_other_fields_count_for_each_prompt():
    """Each request to the front end has them."""
    server = Behind(echo)

    body = {"prompt": ["a"] * 128, "prediction": "b" * 200_000}
    refused = send(server, "POST", COMPLETIONS, spec_of(max_body_bytes=1 << 20), json=body)

    assert refused.status_code == 413
    assert "128 choices of 20" in refused.json()["error"]["message"]
    assert not server.requests
