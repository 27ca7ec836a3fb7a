"""Checks the types of an OpenAI request's fields: the front end's errors do not name the field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, TypeAdapter, ValidationError

from pipeline.errors import RequestError

_ROLES = ("developer", "system", "user", "assistant", "tool", "function")
_Word = Annotated[str, Field(min_length=1)]
# Type of each field, and its description.
_Expected = tuple[TypeAdapter[Any], str]
_SWITCH: _Expected = TypeAdapter(bool), "true or false"
_NUMBERS = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "min_p", "repetition_penalty")
_WHOLE = ("seed", "top_k", "min_tokens", "max_tokens", "max_completion_tokens", "top_logprobs", "num_draft_tokens")
_EXPECTED: dict[str, _Expected] = {
    **dict.fromkeys(_NUMBERS, (TypeAdapter(float), "a number")),
    **dict.fromkeys(_WHOLE, (TypeAdapter(int), "a whole number")),
    **dict.fromkeys(("stream", "ignore_eos", "parallel_tool_calls"), _SWITCH),
    **dict.fromkeys(("strategy", "guided_regex", "guided_grammar"), (TypeAdapter(str), "a text")),
    "stop": (TypeAdapter(_Word | list[_Word]), "a text or a list of texts, none of them empty"),
    "stop_token_ids": (TypeAdapter(list[NonNegativeInt]), "a list of token ids"),
    "logit_bias": (TypeAdapter(dict[str, Any]), "an object from token ids to numbers"),
    "guided_choice": (TypeAdapter(Annotated[list[str], Field(min_length=1)]), "a list of texts"),
}
_OF_ENDPOINT: dict[str, dict[str, _Expected]] = {
    "chat": {"logprobs": _SWITCH},
    "completions": {"prompt": (TypeAdapter(str | list[Any]), "a text, a list of token ids, or a list of either")},
}


def check_types(body: Mapping[str, Any], endpoint: Literal["chat", "completions"]) -> None:
    """Raise RequestError for a field of a wrong type. The front end reports missing ones."""
    expected = _EXPECTED | _OF_ENDPOINT[endpoint]
    for name in filter(expected.__contains__, body):
        kind, description = expected[name]
        try:
            kind.validate_python(body[name], strict=True)
        except ValidationError as error:
            raise RequestError(f"{name} must be {description}") from error
    if endpoint == "chat":
        _check_messages(body.get("messages", []))


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
