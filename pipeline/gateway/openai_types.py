"""Checks the types of an OpenAI request's fields: the front end's errors do not name the field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from pipeline.gateway.bodies import shown
from pipeline.gateway.refusal import FieldError

_ROLES = ("developer", "system", "user", "assistant", "tool", "function")
_Word = Annotated[str, Field(min_length=1)]
# The front end holds token ids and counts in 32 bits.
_LARGEST = (1 << 32) - 1
_Unsigned = Annotated[int, Field(ge=0, le=_LARGEST)]
_Positive = Annotated[int, Field(ge=1, le=_LARGEST)]
# Of half a million wrong items pydantic would report each, for seconds.
_Words = Annotated[list[_Word], Field(fail_fast=True)]
_Choices = Annotated[list[str], Field(min_length=1, fail_fast=True)]
_Ids = Annotated[list[_Unsigned], Field(fail_fast=True)]
_Prompt = str | Annotated[list[str], Field(fail_fast=True)] | _Ids | Annotated[list[_Ids], Field(fail_fast=True)]
# Type of each field, and its description.
_Expected = tuple[TypeAdapter[Any], str]
_SWITCH: _Expected = TypeAdapter(bool), "true or false"
# Least and largest value of each number.
_NUMBERS = {
    **dict.fromkeys(("temperature", "repetition_penalty"), (0, 2)),
    **dict.fromkeys(("top_p", "min_p"), (0, 1)),
    **dict.fromkeys(("presence_penalty", "frequency_penalty"), (-2, 2)),
}
_LIMITS = ("max_tokens", "max_completion_tokens")
_EXPECTED: dict[str, _Expected] = {
    **{
        name: (TypeAdapter(Annotated[float, Field(ge=least, le=most)]), f"a number in {least} .. {most}")
        for name, (least, most) in _NUMBERS.items()
    },
    **dict.fromkeys(_LIMITS, (TypeAdapter(_Positive), f"a whole number in 1 .. {_LARGEST}")),
    "min_tokens": (TypeAdapter(_Unsigned), f"a whole number in 0 .. {_LARGEST}"),
    "top_logprobs": (TypeAdapter(Annotated[int, Field(ge=0, le=20)]), "a whole number in 0 .. 20"),
    **dict.fromkeys(("stream", "ignore_eos", "parallel_tool_calls"), _SWITCH),
    **dict.fromkeys(("model", "strategy", "guided_regex", "guided_grammar"), (TypeAdapter(str), "a text")),
    "num_draft_tokens": (TypeAdapter(int), "a whole number"),
    "seed": (TypeAdapter(Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]), "a whole number in -2^63 .. 2^63 - 1"),
    "top_k": (TypeAdapter(Annotated[int, Field(ge=-1, lt=1 << 31)]), f"a whole number in -1 .. {(1 << 31) - 1}"),
    "stream_options": (TypeAdapter(dict[str, bool | None]), 'an object such as {"include_usage": true}'),
    "stop": (TypeAdapter(_Word | _Words), "a text or a list of texts, none of them empty"),
    "stop_token_ids": (TypeAdapter(_Ids), "a list of token ids"),
    "logit_bias": (TypeAdapter(dict[str, Any]), "an object from token ids to numbers"),
    "guided_choice": (TypeAdapter(_Choices), "a list of at least one text"),
}
_OF_ENDPOINT: dict[str, dict[str, _Expected]] = {
    "chat": {"logprobs": _SWITCH},
    "completions": {
        "prompt": (TypeAdapter(_Prompt), "a text, a list of token ids, or a list of either"),
        "logprobs": (
            TypeAdapter(Annotated[int, Field(ge=0, le=5)]),
            "a whole number in 0 .. 5: how many of the most probable tokens to return",
        ),
    },
}

# Types of further fields of a message.
_OF_MESSAGE = {"name": (str, "a text"), "tool_call_id": (str, "a text"), "tool_calls": (list, "a list of calls")}

# Fields of whole numbers, of all endpoints.
_WHOLE = (
    *(*_LIMITS, "max_output_tokens", "min_tokens", "num_draft_tokens"),
    *("n", "seed", "top_k", "logprobs", "top_logprobs"),
)
# A larger number is not exact as a float.
_EXACT = 1 << 53


def with_whole_numbers(body: Mapping[str, Any]) -> dict[str, Any]:
    """The body with whole numbers in place of floats such as 8.0, which JSON does not distinguish."""
    given = {name: body[name] for name in _WHOLE if type(body.get(name)) is float}
    return {**body, **{name: int(number) for name, number in given.items() if number % 1 == 0 and abs(number) < _EXACT}}


def check_openai_types(body: Mapping[str, Any], endpoint: Literal["chat", "completions"]) -> None:
    """Raise FieldError for a field of a wrong type. The front end reports missing ones."""
    expected = _EXPECTED | _OF_ENDPOINT[endpoint]
    for name in filter(expected.__contains__, body):
        kind, description = expected[name]
        try:
            kind.validate_python(body[name], strict=True)
        except ValidationError as error:
            raise FieldError(name, f"must be {description}; found {shown(body[name])}") from error
    if endpoint == "chat":
        _check_messages(body.get("messages", []))


def _check_messages(messages: object) -> None:
    if not isinstance(messages, list):
        raise FieldError("messages", 'must be a list, such as [{"role": "user", "content": "Hello"}]')
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise FieldError(f"messages[{number}]", 'must be an object, such as {"role": "user", "content": "Hello"}')
        role, content = message.get("role"), message.get("content")
        if role not in _ROLES:
            raise FieldError(f"messages[{number}].role", f"must be one of {', '.join(_ROLES)}; found {shown(role)}")
        if role not in ("assistant", "function") and not isinstance(content, str | list):
            raise FieldError(f"messages[{number}].content", "must be a text or a list of parts")
        if content == []:
            raise FieldError(f"messages[{number}].content", "is an empty list; send a text, or parts of one")
        for place, part in enumerate(content if isinstance(content, list) else []):
            kind = part.get("type") if isinstance(part, Mapping) else None
            if isinstance(kind, str) and kind not in ("text", "refusal"):
                kind = kind[:40]
                raise FieldError(f"messages[{number}].content", f"has a part of type {kind!r}; this model reads text")
            if not isinstance(kind, str) or not isinstance(part.get(kind), str):
                raise FieldError(f"messages[{number}].content[{place}]", 'must be {"type": "text", "text": "..."}')
        for name, (type_, description) in _OF_MESSAGE.items():
            if not isinstance(message.get(name), type_ | None):
                raise FieldError(f"messages[{number}].{name}", f"must be {description}; found {shown(message[name])}")
