"""Checks the values of a `generate` request against the datatypes of the model's inputs.

Triton itself silently wraps integers that are too large for their tensor. For other wrong types it returns status 500.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.gateway.bodies import Json
from pipeline.gateway.refusal import Refusal

Types = Mapping[str, str]
_RANGES = {
    f"{sign}INT{bits}": (0, (1 << bits) - 1) if sign else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    for sign in ("", "U")
    for bits in (8, 16, 32, 64)
}
_SHOWN = 60


def types_of(metadata: Json) -> Types:
    """Datatype of each input in a model's metadata."""
    return {tensor["name"]: tensor["datatype"] for tensor in metadata["inputs"]}


def check_types(value: Json, types: Types) -> None:
    """Raise Refusal (400) for a value that its tensor cannot hold."""
    for name in value.keys() & types.keys():
        for item in _items(value[name]):
            if (wanted := _fault(item, types[name])) is not None:
                raise Refusal(400, f"{name} is {_short(item)}; it must be {wanted}")


def _items(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for item in value:
            yield from _items(item)
    else:
        yield value


def _fault(item: Any, datatype: str) -> str | None:
    """Description of the expected type; None if the item has it."""
    if datatype == "BYTES":
        return None if isinstance(item, str) else "a string"
    if datatype == "BOOL":
        return None if isinstance(item, bool) else "true or false"
    if datatype in _RANGES:
        low, high = _RANGES[datatype]
        return None if type(item) is int and low <= item <= high else f"a whole number in {low} .. {high}"
    return None if type(item) in (int, float) else "a number"


def _short(item: Any) -> str:
    text = repr(item) if item is not None else "null"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
