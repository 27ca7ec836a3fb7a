"""Bodies of HTTP requests: reads them within limits of size and time, parses them, and serializes them again.

The upstream server receives only JSON serialized here, with bounded depth, never a client's own: 150,000 nested
brackets crash a tritonserver.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pydantic_core

from pipeline.gateway.refusal import Refusal

# Deepest nesting of lists and objects. Tensors need four levels, JSON schemas rarely twenty.
MAX_DEPTH = 64
# If a time limit is noticed later than this, all processes were suspended meanwhile.
_LATE_S = 1.0
# Range of the integer datatypes of tensors.
_INTEGERS = range(-(1 << 63), 1 << 64)
Receive = Callable[[], Awaitable[Any]]
Json = dict[str, Any]


class Disconnected(Exception):
    """The client disconnected before the end of its request."""


async def read_body(receive: Receive, content_length: str | None, max_bytes: int, timeout_s: float) -> bytes:
    """Read the whole body of a request. Raises Refusal 413 if it is longer than max_bytes, Refusal 408 if it does not
    arrive within timeout_s, Disconnected if the client leaves. The time starts again after a suspension of the
    process."""
    too_long = Refusal(413, f"the body is longer than {max_bytes} bytes (server.gateway.max_body_bytes)")
    if content_length is not None and content_length.isdecimal() and int(content_length[:20]) > max_bytes:
        raise too_long
    chunks, num_bytes, late_s = [], 0, math.inf
    while late_s > _LATE_S:
        with anyio.move_on_after(timeout_s) as scope:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Disconnected
                chunk = message.get("body", b"")
                num_bytes += len(chunk)
                if num_bytes > max_bytes:
                    raise too_long
                chunks.append(chunk)
                if not message.get("more_body", False):
                    return b"".join(chunks)
        late_s = anyio.current_time() - scope.deadline
    raise Refusal(408, f"the body did not arrive within {timeout_s:g} s")


def parse_json(body: bytes) -> Json:
    """Parse a body. Raises Refusal (400) if it is not a JSON object, is nested too deeply, or holds a number that fits
    no tensor."""
    try:
        value = pydantic_core.from_json(body, allow_inf_nan=False, cache_strings="none")
    except ValueError as error:
        raise Refusal(400, f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise Refusal(400, "the body must be a JSON object")
    _check(value)
    return value


def write_json(value: Json) -> bytes:
    return pydantic_core.to_json(value)


def _check(value: Any) -> None:
    """Raise Refusal unless the depth and the numbers of a value are within limits. Iterates level by level, because
    recursion could overflow the stack."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for item in level:
            members = item.values() if isinstance(item, dict) else item
            for member in members:
                if isinstance(member, dict | list):
                    below.append(member)
                elif type(member) is int and member not in _INTEGERS:
                    raise Refusal(400, "the body holds a whole number of more than 64 bits")
                elif type(member) is float and not math.isfinite(member):
                    raise Refusal(400, "the body holds a number that is not finite in 64 bits")
        if not below:
            return
        level = below
    raise Refusal(400, f"the body is nested more than {MAX_DEPTH} levels deep")
