"""Requests to Triton's HTTP endpoint `infer`: JSON, with tensor data inside or as bytes after it.

Values in the JSON are checked as those of `generate`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence
from itertools import accumulate
from operator import mul
from typing import Any

from pipeline.gateway.bodies import Json, parse_json, write_json
from pipeline.gateway.generate_body import (
    MAX_TOKENS,
    NAMESPACE,
    NUM_CHOICES,
    STOP,
    Checked,
    Types,
    check_tensor_types,
    positive,
    sent_id_of,
    single,
    with_sent_id,
)
from pipeline.gateway.refusal import Refusal
from pipeline.gateway.tenants import Tenant

_BINARY = "binary_data_size"
_SHARED_MEMORY = "shared_memory_region"
# Parameter that requests the best classes of an output. A tritonserver divides by the number of classes, which is 0 for
# text, and crashes.
_CLASSIFICATION = "classification"
# Limit of the digits of a length, as in h11: Python refuses to convert thousands.
_MAX_DIGITS = 20
# Limit of an input's elements, more than any body holds. A tritonserver (2.51) takes the byte size of [1, 1 << 62] for
# 0, and then the process of the model dies.
_MAX_ELEMENTS = 1 << 31


def checked_infer(body: bytes, header_length: str | None, tenant: Tenant, types: Types) -> Checked:
    """Check a request and set the tenant's namespace. header_length: value of Inference-Header-Content-Length; None if
    the body is only JSON. types: datatypes of the model's inputs. Raises Refusal (400)."""
    json_length = len(body) if header_length is None else _length(header_length, len(body))
    value, tail = parse_json(body[:json_length]), body[json_length:]
    inputs = _tensors(value, "inputs")
    is_stop = any(tensor["name"] == STOP for tensor in inputs)
    sent_id = sent_id_of(value, tenant, is_unique=NAMESPACE in types and not is_stop)
    for name, count in Counter(tensor["name"] for tensor in inputs).items():
        if count > 1:
            raise Refusal(400, f"the input {name[:80]!r} occurs {count} times; send it once")
    check_tensor_types({tensor["name"]: tensor["data"] for tensor in inputs if "data" in tensor}, types)
    outputs = _tensors(value, "outputs") if "outputs" in value else []
    for tensor in (*inputs, *outputs):
        refuse_parameters(tensor["name"], _parameters(tensor))
    for tensor in inputs:
        refuse_shape(tensor["name"], tensor.get("shape"), has_one_row=NAMESPACE in types)
    blocks = _blocks(inputs, tail)
    numbers = {
        tensor["name"]: positive(single(_data(tensor, block)))
        for tensor, block in blocks
        if tensor["name"] in (MAX_TOKENS, NUM_CHOICES)
    }
    namespace = ""
    if NAMESPACE in types:
        asked = next((_text(tensor, block) for tensor, block in blocks if tensor["name"] == NAMESPACE), "")
        blocks = [(tensor, block) for tensor, block in blocks if tensor["name"] != NAMESPACE]
        namespace = tenant.namespace(asked)
        blocks.append(({"name": NAMESPACE, "datatype": "BYTES", "shape": [1, 1], "data": [namespace]}, None))
    header = write_json(with_sent_id(value, sent_id) | {"inputs": [tensor for tensor, _ in blocks]})
    tail = b"".join(block for _, block in blocks if block is not None)
    length = None if header_length is None else len(header)
    return Checked(header + tail, length, numbers.get(MAX_TOKENS), numbers.get(NUM_CHOICES) or 1, sent_id, namespace)


def _length(text: str, num_bytes: int) -> int:
    if not text.isdecimal() or len(text) > _MAX_DIGITS or int(text) > num_bytes:
        raise Refusal(400, f"Inference-Header-Content-Length is {text[:20]!r}; the body has {num_bytes} bytes")
    return int(text)


def _tensors(value: Json, name: str) -> list[Json]:
    tensors = value.get(name)
    if not isinstance(tensors, list) or not all(isinstance(item, dict) for item in tensors):
        raise Refusal(400, f"{name} must be a list of objects")
    if not all(isinstance(item.get("name"), str) and "\0" not in item["name"] for item in tensors):
        raise Refusal(400, f"each of {name} needs a name, without the character U+0000")
    return tensors


def refuse_parameters(name: str, parameters: Container[str]) -> None:
    """Raise Refusal (400) for parameters of a tensor that clients may not send."""
    if _SHARED_MEMORY in parameters:
        raise Refusal(400, f"{name[:80]} is in shared memory, which clients of this server cannot use")
    if _CLASSIFICATION in parameters:
        raise Refusal(400, f"{name[:80]} cannot be classified: this server generates text")


def refuse_shape(name: str, shape: Any, has_one_row: bool) -> None:
    """Raise Refusal (400) for an input with a negative size, too many elements or, with has_one_row, several rows: a
    request to our models has one row, as its namespace has. Triton refuses a shape that is no list of integers."""
    sizes = [size for size in shape if type(size) is int] if isinstance(shape, Sequence) else []
    products = accumulate((size or 1 for size in sizes), mul)
    if any(not 0 < product <= _MAX_ELEMENTS for product in products):
        raise Refusal(400, f"{name[:80]} has the shape {sizes!r:.80}, which no data has; send the shape of its data")
    if has_one_row and sizes and sizes[0] > 1:
        raise Refusal(400, f"{name[:80]} has {sizes[0]} rows; send each row as a request of its own")


def _parameters(tensor: Json) -> Json:
    parameters = tensor.get("parameters", {})
    if not isinstance(parameters, dict):
        raise Refusal(400, f"the parameters of {tensor['name'][:80]} must be an object")
    return parameters


def _blocks(inputs: list[Json], tail: bytes) -> list[tuple[Json, bytes | None]]:
    """Each input with its bytes after the JSON; None if its data is in the JSON."""
    blocks: list[tuple[Json, bytes | None]] = []
    start = 0
    for tensor in inputs:
        size = _parameters(tensor).get(_BINARY)
        if size is None:
            blocks.append((tensor, None))
            continue
        if type(size) is not int or not 0 <= size <= len(tail) - start:
            raise Refusal(400, f"{_BINARY} of {tensor['name'][:80]} is {size}; {len(tail) - start} bytes are left")
        blocks.append((tensor, tail[start : start + size]))
        start += size
    if start != len(tail):
        raise Refusal(400, f"{len(tail) - start} bytes after the JSON belong to no input")
    return blocks


def _data(tensor: Json, block: bytes | None) -> Any:
    """JSON data of a tensor, or the single 32-bit integer in its bytes; None for other bytes."""
    if block is None:
        return tensor.get("data")
    return int.from_bytes(block, "little", signed=True) if len(block) == 4 else None


def _text(tensor: Json, block: bytes | None) -> str:
    """The single string of a tensor. Raises Refusal (400) if there is none."""
    value = single(tensor.get("data")) if block is None else bytes_element(block)
    if not isinstance(value, str):
        raise Refusal(400, f"{tensor['name']} must hold one string")
    return value


def bytes_element(block: bytes) -> str | None:
    """The single string in the data of a BYTES tensor: its length in 4 bytes, then UTF-8. None for other data."""
    is_one = len(block) >= 4 and int.from_bytes(block[:4], "little") == len(block) - 4
    return as_text(block[4:]) if is_one else None


def as_text(data: bytes) -> str | None:
    """The text in UTF-8; None for other data."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
