"""Requests to Triton's `generate` and `generate_stream`: one JSON object with the inputs by name."""

from __future__ import annotations

from typing import Any, NamedTuple

from pipeline.gateway.bodies import Json, parse_json, write_json
from pipeline.gateway.input_types import Types, check_types
from pipeline.gateway.refusal import Refusal
from pipeline.gateway.tenants import Tenant

NAMESPACE, MAX_TOKENS, ID = "namespace", "max_tokens", "id"


class Checked(NamedTuple):
    """A checked request to forward. header_length: bytes of the JSON part; None if the body is only JSON. max_tokens:
    limit of the output; None if the request sets none."""

    body: bytes
    header_length: int | None
    max_tokens: int | None


def checked_generate(body: bytes, tenant: Tenant, types: Types) -> Checked:
    """Check a request and set the tenant's namespace. types: datatypes of the model's inputs. Raises Refusal (400)."""
    value = parse_json(body)
    check_types(value, types)
    value = with_request_id(value, tenant)
    if NAMESPACE in types:
        value = with_namespace(value, tenant)
    return Checked(write_json(value), None, positive(single(value.get(MAX_TOKENS))))


def with_request_id(value: Json, tenant: Tenant) -> Json:
    if ID not in value:
        return value
    if not isinstance(value[ID], str):
        raise Refusal(400, "id must be a string")
    return value | {ID: tenant.request_id(value[ID])}


def with_namespace(value: Json, tenant: Tenant) -> Json:
    asked = single(value.get(NAMESPACE, ""))
    if not isinstance(asked, str):
        raise Refusal(400, "namespace must be a string")
    return value | {NAMESPACE: tenant.namespace(asked)}


def single(value: Any) -> Any:
    """Unwrap nested lists with one item, which Triton accepts in place of a value."""
    while isinstance(value, list) and len(value) == 1:
        value = value[0]
    return value


def positive(value: Any) -> int | None:
    """A number of tokens; None for an invalid value, which the model reports."""
    return value if type(value) is int and value > 0 else None
