"""Checks the types of an OpenAI request's fields: the front end's errors do not name the field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pipeline.errors import RequestError

_ROLES = ("developer", "system", "user", "assistant", "tool", "function")
_NUMBERS = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "min_p", "repetition_penalty")
_WHOLE_NUMBERS = ("seed", "top_k", "min_tokens", "top_logprobs")
_SWITCHES = ("stream", "ignore_eos", "parallel_tool_calls")


def check_types(body: Mapping[str, Any], endpoint: Literal["chat", "completions"]) -> None:
    """Raise RequestError for a field of a wrong type. The front end reports missing ones."""
    for name, value in body.items():
        if name in _NUMBERS and type(value) not in (int, float):
            raise RequestError(f"{name} must be a number")
        if name in _WHOLE_NUMBERS and type(value) is not int:
            raise RequestError(f"{name} must be a whole number")
        if (name in _SWITCHES or (name == "logprobs" and endpoint == "chat")) and type(value) is not bool:
            raise RequestError(f"{name} must be true or false")
    stop = body.get("stop", [])
    if not _are_words([stop] if isinstance(stop, str) else stop):
        raise RequestError("stop must be a text or a list of texts, none of them empty")
    if endpoint == "chat":
        _check_messages(body.get("messages", []))
    elif not isinstance(body.get("prompt", ""), str | list):
        raise RequestError("prompt must be a text, a list of token ids, or a list of either")


def _check_messages(messages: object) -> None:
    if not isinstance(messages, list):
        raise RequestError('messages must be a list, such as [{"role": "user", "content": "Hello"}]')
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise RequestError(f'messages[{number}] must be an object, such as {{"role": "user", "content": "Hello"}}')
        role, content = message.get("role"), message.get("content")
        if role not in _ROLES:
            raise RequestError(f"messages[{number}].role must be one of {', '.join(_ROLES)}")
        if role not in ("assistant", "function") and not isinstance(content, str | list):
            raise RequestError(f"messages[{number}].content must be a text or a list of parts")


def _are_words(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) and item for item in value)
