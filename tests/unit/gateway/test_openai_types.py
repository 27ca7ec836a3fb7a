"""Fields of a wrong type get an error with their name."""

from __future__ import annotations

import time
from typing import Any, Literal

import pytest

from pipeline.errors import RequestError
from pipeline.gateway.openai_types import check_openai_types, with_whole_numbers

MESSAGE = {"role": "user", "content": "Hello"}
PART = {"type": "text", "text": "Hello"}


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"temperature": "hot"}, "temperature must be a number"),
        ({"top_p": True}, r"top_p must be a number in 0 \.\. 1; found true"),
        ({"seed": 1.5}, "seed must be a whole number"),
        ({"stream": "yes"}, "stream must be true or false"),
        ({"logprobs": 3}, "logprobs must be true or false; found 3"),
        ({"max_tokens": 0}, r"max_tokens must be a whole number in 1 \.\. 4294967295"),
        ({"max_completion_tokens": 1 << 32}, "max_completion_tokens must be a whole number in 1"),
        ({"min_tokens": -2}, "min_tokens must be a whole number in 0"),
        ({"top_logprobs": -1}, r"top_logprobs must be a whole number in 0 \.\. 20"),
        ({"top_logprobs": 21}, r"top_logprobs must be a whole number in 0 \.\. 20; found 21"),
        ({"temperature": 2.5}, r"temperature must be a number in 0 \.\. 2; found 2\.5"),
        ({"presence_penalty": -3}, r"presence_penalty must be a number in -2 \.\. 2; found -3"),
        ({"stop": ["a", 3]}, r'stop must be a text or a list of texts, none of them empty; found \["a",3\]'),
        ({"messages": "Hello"}, "messages must be a list, such as"),
        ({"messages": [MESSAGE, "Hello"]}, r"messages\[1\] must be an object"),
        ({"messages": [{"role": "boss", "content": "Hello"}]}, r"messages\[0\].role must be one of developer, system"),
        ({"messages": [{"role": "user"}]}, r"messages\[0\].content must be a text or a list of parts"),
        ({"messages": [{"role": "user", "content": ["a"]}]}, r"messages\[0\].content\[0\] must be {"),
        ({"messages": [{"role": "user", "content": [PART, {"type": "text"}]}]}, r"\[0\].content\[1\] must be {"),
        ({"messages": [{"role": "user", "content": [{"text": "a"}]}]}, r"messages\[0\].content\[0\] must be {"),
        ({"messages": [{"role": "user", "content": [{"type": ["text"]}]}]}, r"messages\[0\].content\[0\] must be {"),
        ({"messages": [{"role": "user", "content": []}]}, r"messages\[0\].content is an empty list"),
        ({"messages": [{"role": "user", "content": [PART, {"type": "image_url"}]}]}, r"\[0\].* type 'image_url'"),
        ({"messages": [MESSAGE | {"name": 5}]}, r"messages\[0\].name must be a text"),
        ({"messages": [{"role": "assistant", "tool_calls": "f"}]}, r"messages\[0\].tool_calls must be a list of calls"),
        ({"messages": [{"role": "tool", "content": "a", "tool_call_id": 1}]}, r"messages\[0\].tool_call_id must be a"),
        ({"model": 5}, "model must be a text"),
        ({"seed": 1 << 63}, r"seed must be a whole number in -2\^63 \.\. 2\^63 - 1"),
        ({"top_k": 1 << 31}, r"top_k must be a whole number in -1 \.\. 2147483647"),
        ({"top_k": -2}, r"top_k must be a whole number in -1 \.\. 2147483647"),
        ({"stream_options": []}, 'stream_options must be an object such as {"include_usage": true}'),
        ({"stream_options": {"include_usage": "yes"}}, "stream_options must be an object such as"),
    ],
)
def test_a_field_of_a_wrong_type_is_named(body: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RequestError, match=sentence):
        check_openai_types(body, "chat")


@pytest.mark.parametrize("prompt", [5, {"text": "a"}, [-1], [1 << 32], [True], ["a", 1], [1, [2]], [["a"]], [[1.5]]])
def test_a_prompt_of_a_wrong_type_is_named(prompt: object) -> None:
    with pytest.raises(RequestError, match="prompt must be a text"):
        check_openai_types({"prompt": prompt}, "completions")


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": [-1] * 500_000},
        {"prompt": [True] * 500_000},
        {"stop_token_ids": [-1] * 500_000},
        {"stop": [1] * 500_000},
    ],
)
def test_wrong_items_are_not_all_reported(body: dict[str, Any]) -> None:
    """Pydantic would take seven seconds for half a million of them, in which the gateway would stop."""
    started = time.process_time()
    with pytest.raises(RequestError):
        check_openai_types(body, "completions")
    assert time.process_time() - started < 2


def test_log_probabilities_of_completions_are_a_number() -> None:
    for wrong in (True, -1, 6):
        with pytest.raises(RequestError, match=r"logprobs must be a whole number in 0 \.\. 5"):
            check_openai_types({"prompt": "a", "logprobs": wrong}, "completions")


@pytest.mark.parametrize(
    ("body", "endpoint"),
    [
        ({"messages": [MESSAGE, {"role": "assistant", "tool_calls": []}], "temperature": 1, "stop": "a"}, "chat"),
        ({"messages": [{"role": "tool", "content": [PART]}], "top_k": -1, "logprobs": True}, "chat"),
        ({"messages": [MESSAGE | {"name": None}], "stream_options": {"include_usage": True}}, "chat"),
        ({"prompt": [[1, 2], [3]], "logprobs": 3, "stream": False, "stop": ["a"]}, "completions"),
        ({"prompt": ["a", "b"], "max_tokens": 1, "min_tokens": 0}, "completions"),
        ({"prompt": [1, (1 << 32) - 1]}, "completions"),
        ({"prompt": []}, "completions"),
        ({}, "chat"),
        ({}, "completions"),
    ],
)
def test_other_fields_pass(body: dict[str, Any], endpoint: Literal["chat", "completions"]) -> None:
    check_openai_types(body, endpoint)


def test_a_whole_number_may_be_written_as_a_float() -> None:
    """JSON has one type of numbers. OpenAI's own server and vLLM take 8.0 for 8."""
    sent = {"max_tokens": 8.0, "n": 2.0, "seed": -7.0, "temperature": 1.0, "top_k": 1.5, "top_logprobs": 1e300}
    found = with_whole_numbers(sent)

    assert found == sent
    assert [type(value) for value in found.values()] == [int, int, int, float, float, float]
