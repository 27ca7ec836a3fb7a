"""Reads and checks requests of Triton's gRPC interface, and sets the tenant's namespace in them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio

from pipeline.gateway.generate_body import MAX_TOKENS, NAMESPACE, NUM_CHOICES, positive
from pipeline.gateway.infer_body import as_text, bytes_element, refuse_parameters, refuse_shape
from pipeline.gateway.refusal import Refusal
from pipeline.gateway.tenants import Tenant
from pipeline.request_ids import SentId


async def message_of(requests: AsyncIterator[Any], timeout_s: float) -> Any:
    """The message of a call with one. Raises Refusal if it does not arrive in time (504), or is missing (400)."""
    try:
        with anyio.fail_after(timeout_s):
            async for request in requests:
                return request
    except TimeoutError:
        raise Refusal(504, f"the message of the call did not arrive within {timeout_s:g} s") from None
    raise Refusal(400, "the call has no message")


def check_request(request: Any, tenant: Tenant, sets_namespace: bool) -> tuple[int | None, int, str]:
    """Check a ModelInferRequest and put the tenant into its id and its namespace, in place. sets_namespace: whether the
    model has the input `namespace`. Returns the limit of tokens of one output, None if the request sets none, the
    number of outputs, and the namespace, empty if the model has none. Raises Refusal (400)."""
    for tensor in (*request.inputs, *request.outputs):
        refuse_parameters(tensor.name, tensor.parameters)
    for tensor in request.inputs:
        refuse_shape(tensor.name, tensor.shape, has_one_row=sets_namespace)
    if any("\0" in name for name in (request.id, *(tensor.name for tensor in (*request.inputs, *request.outputs)))):
        raise Refusal(400, "the id or the name of a tensor has the character U+0000, at which Triton would cut it off")
    is_raw = bool(request.raw_input_contents)
    if is_raw and len(request.raw_input_contents) != len(request.inputs):
        counts = f"{len(request.inputs)} inputs, and raw contents of {len(request.raw_input_contents)}"
        raise Refusal(400, f"the request has {counts}; send the raw contents of every input, or of none")
    indices = {tensor.name: index for index, tensor in enumerate(request.inputs)}
    if len(indices) < len(request.inputs):
        name = next(tensor.name for index, tensor in enumerate(request.inputs) if indices[tensor.name] != index)
        raise Refusal(400, f"the input {name[:80]!r} occurs twice; send it once")
    max_tokens, num_choices = (
        None if (index := indices.get(name)) is None else positive(_integer(request, index, is_raw))
        for name in (MAX_TOKENS, NUM_CHOICES)
    )
    request.id = SentId(tenant.prefix, request.id).text
    namespace = _set_namespace(request, tenant, indices.get(NAMESPACE), is_raw) if sets_namespace else ""
    return max_tokens, num_choices or 1, namespace


def _integer(request: Any, index: int, is_raw: bool) -> int | None:
    if is_raw:
        block = request.raw_input_contents[index]
        return int.from_bytes(block, "little", signed=True) if len(block) == 4 else None
    values = request.inputs[index].contents.int_contents
    return values[0] if len(values) == 1 else None


def _set_namespace(request: Any, tenant: Tenant, index: int | None, is_raw: bool) -> str:
    """Set the tenant's namespace, and return it. index: of the client's namespace, which it replaces."""
    namespace = tenant.namespace("" if index is None else _text(request, index, is_raw))
    if index is not None:
        del request.inputs[index]
        if is_raw:
            del request.raw_input_contents[index]
    tensor, value = request.inputs.add(name=NAMESPACE, datatype="BYTES", shape=[1, 1]), namespace.encode()
    if is_raw:
        request.raw_input_contents.append(len(value).to_bytes(4, "little") + value)
    else:
        tensor.contents.bytes_contents.append(value)
    return namespace


def _text(request: Any, index: int, is_raw: bool) -> str:
    if is_raw:
        text = bytes_element(request.raw_input_contents[index])
    else:
        values = request.inputs[index].contents.bytes_contents
        text = as_text(values[0]) if len(values) == 1 else None
    if text is None:
        raise Refusal(400, "namespace must hold one string of UTF-8")
    return text
