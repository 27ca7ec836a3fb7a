"""Fields of a wrong type get an error with their name."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from pipeline.errors import RequestError
from pipeline.gateway.openai_types import check_types

MESSAGE = {"role": "user", "content": "Hello"}


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"temperature": "hot"}, "temperature must be a number"),
        ({"top_p": True}, "top_p must be a number"),
        ({"seed": 1.5}, "seed must be a whole number"),
        ({"stream": "yes"}, "stream must be true or false"),
        ({"logprobs": 3}, "logprobs must be true or false"),
        ({"stop": ["a", 3]}, "stop must be a text or a list of texts"),
        ({"messages": "Hello"}, "messages must be a list, such as"),
        ({"messages": [MESSAGE, "Hello"]}, r"messages\[1\] must be an object"),
        ({"messages": [{"role": "boss", "content": "Hello"}]}, r"messages\[0\].role must be one of developer, system"),
        ({"messages": [{"role": "user"}]}, r"messages\[0\].content must be a text or a list of parts"),
    ],
)
def test_a_field_of_a_wrong_type_is_named(body: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RequestError, match=sentence):
        check_types(body, "chat")


def test_a_prompt_of_a_wrong_type_is_named() -> None:
    with pytest.raises(RequestError, match="prompt must be a text"):
        check_types({"prompt": 5}, "completions")


@pytest.mark.parametrize(
    ("body", "endpoint"),
    [
        ({"messages": [MESSAGE, {"role": "assistant", "tool_calls": []}], "temperature": 1, "stop": "a"}, "chat"),
        ({"messages": [{"role": "tool", "content": [{"type": "text"}]}], "top_k": -1, "logprobs": True}, "chat"),
        ({"prompt": [[1, 2], [3]], "logprobs": 3, "stream": False, "stop": ["a"]}, "completions"),
        ({}, "chat"),
    ],
)
def test_other_fields_pass(body: dict[str, Any], endpoint: Literal["chat", "completions"]) -> None:
    check_types(body, endpoint)
