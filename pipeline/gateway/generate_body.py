"""Requests to Triton's `generate` and `generate_stream`: one JSON object with the inputs by name.

Their values are checked against the datatypes of the model's inputs: Triton itself silently wraps integers that are too
large for their tensor. For other wrong types it returns status 500.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from pipeline.gateway.bodies import Json, parse_json, shown, write_json
from pipeline.gateway.refusal import Refusal
from pipeline.gateway.tenants import Tenant
from pipeline.request_ids import SentId, unique_id

NAMESPACE, MAX_TOKENS, ID, PARAMETERS = "namespace", "max_tokens", "id", "parameters"
# Number of outputs, each of which counts as a request.
NUM_CHOICES = "num_return_sequences"
# Input of a request that stops the requests with the same id.
STOP = "stop"
Types = Mapping[str, str]
_RANGES = {
    f"{sign}INT{bits}": (0, (1 << bits) - 1) if sign else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    for sign in ("", "U")
    for bits in (8, 16, 32, 64)
}


class Checked(NamedTuple):
    """A checked request to forward. header_length: bytes of the JSON part; None if the body is only JSON. max_tokens:
    limit of one output; None if the request sets none. num_choices: number of outputs. sent_id: its id. namespace: the
    tenant's; empty if the model has none."""

    body: bytes
    header_length: int | None
    max_tokens: int | None
    num_choices: int
    sent_id: SentId
    namespace: str


def checked_generate(body: bytes, tenant: Tenant, types: Types) -> Checked:
    """Check a request and set the tenant's namespace. types: datatypes of the model's inputs. Raises Refusal (400)."""
    value = _with_parameters(parse_json(body), types)
    check_tensor_types(value, types)
    sent_id = sent_id_of(value, tenant, is_unique=NAMESPACE in types and STOP not in value)
    namespace = ""
    if NAMESPACE in types:
        if not isinstance(asked := single(value.get(NAMESPACE, "")), str):
            raise Refusal(400, "namespace must be a string")
        namespace = value[NAMESPACE] = tenant.namespace(asked)
    max_tokens, num_choices = (positive(single(value.get(name))) for name in (MAX_TOKENS, NUM_CHOICES))
    body = write_json(with_sent_id(value, sent_id))
    return Checked(body, None, max_tokens, num_choices or 1, sent_id, namespace)


def _with_parameters(value: Json, types: Types) -> Json:
    """The request with the inputs in its object `parameters` beside the others. Triton does the same, but its errors
    for them hold internal ids, or are those of a fault. Raises Refusal (400) for an input in both places."""
    parameters = value.get(PARAMETERS)
    if not isinstance(parameters, dict):  # Triton reports what is no object
        return value
    inputs = {name: parameters[name] for name in parameters if name in types}
    for name in inputs:
        if name in value:
            raise Refusal(400, f"{name} occurs in the request and in its {PARAMETERS}; send it once")
    others = {name: item for name, item in parameters.items() if name not in inputs}
    return value | inputs | {PARAMETERS: others}


def sent_id_of(value: Json, tenant: Tenant, is_unique: bool) -> SentId:
    """Id with which a request is sent. is_unique: so that the gateway can stop it, and no other. Raises Refusal (400)
    if the client's id is no string, or Triton would cut it off."""
    chosen = value.get(ID, "")
    if not isinstance(chosen, str) or "\0" in chosen:
        raise Refusal(400, "id must be a string without the character U+0000")
    return SentId(tenant.prefix, chosen, unique_id("") if is_unique else "")


def with_sent_id(value: Json, sent_id: SentId) -> Json:
    """The request with the id to send, if it has one."""
    return value | {ID: sent_id.text} if sent_id.text else value


def single(value: Any) -> Any:
    """The item of nested lists that hold one, as Triton reads them, empty ones too; other values as they are."""
    items = list(islice(_items(value), 2))
    return items[0] if len(items) == 1 else value


def positive(value: Any) -> int | None:
    """A number of tokens or outputs; None for an invalid value, which the model reports."""
    return value if type(value) is int and value > 0 else None


def types_of(metadata: Json) -> Types:
    """Datatype of each input in a model's metadata."""
    return {tensor["name"]: tensor["datatype"] for tensor in metadata["inputs"]}


def check_tensor_types(value: Json, types: Types) -> None:
    """Raise Refusal (400) for a value that its tensor cannot hold."""
    for name in value.keys() & types.keys():
        for item in _items(value[name]):
            if (wanted := _fault(item, types[name])) is not None:
                raise Refusal(400, f"{name} is {shown(item)}; it must be {wanted}")


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
