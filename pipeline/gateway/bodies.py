"""Bodies of HTTP requests: reads them within limits of size and time, parses them, and serializes them again.

The upstream server receives only JSON serialized here, with bounded depth, never a client's own: 150,000 nested
brackets crash a tritonserver.
"""

from __future__ import annotations

import math
from codecs import BOM_UTF8
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pydantic_core

from pipeline.gateway.refusal import Refusal
from pipeline.gateway.tenants import MAX_LONG, RETRY_AFTER_S, long_bytes

# Deepest nesting of lists and objects. Tensors need four levels, JSON schemas rarely twenty.
MAX_DEPTH = 64
# Most values of a body. Tensors in JSON rarely have 100,000. Four million, which fit into 8 MiB, would stop the event
# loop for seconds.
MAX_VALUES = 1 << 19
# If a time limit is noticed later than this, all processes were suspended meanwhile.
_LATE_S = 1.0
# Range of the integer datatypes of tensors.
_INTEGERS = range(-(1 << 63), 1 << 64)
# Longest value in a message, in characters.
_SHOWN = 60
Receive = Callable[[], Awaitable[Any]]
Json = dict[str, Any]


class Disconnected(Exception):
    """The client disconnected before the end of its request."""


class BodyReader:
    """Reads bodies of requests. max_bytes: of one body. timeout_s: limit for the arrival of one body. Together they
    hold at most MAX_LONG bodies of the longest size; 1,000 clients that send slowly could use up the memory."""

    def __init__(self, max_bytes: int, timeout_s: float) -> None:
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._num_held = 0

    async def read(self, receive: Receive, content_length: str | None) -> bytes:
        """Read the whole body of a request. Raises Refusal 413 if it is too long, 408 if it is late, 503 if too many
        long ones arrive at the same time; Disconnected if the client leaves. The time starts again after a suspension
        of the process."""
        if content_length is not None and content_length.isdecimal() and int(content_length[:20]) > self._max_bytes:
            raise self._too_long()
        body, late_s = bytearray(), math.inf
        try:
            while late_s > _LATE_S:
                with anyio.move_on_after(self._timeout_s) as scope:
                    while await self._receive(receive, body):
                        pass
                    return bytes(body)
                late_s = anyio.current_time() - scope.deadline
        finally:
            self._num_held -= long_bytes(len(body))
        raise Refusal(408, f"the body did not arrive within {self._timeout_s:g} s")

    async def _receive(self, receive: Receive, body: bytearray) -> bool:
        """Append the next part. Returns whether there is more."""
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        before = long_bytes(len(body))
        body += message.get("body", b"")
        self._num_held += long_bytes(len(body)) - before
        if len(body) > self._max_bytes:
            raise self._too_long()
        has_more: bool = message.get("more_body", False)
        if has_more and self._num_held > MAX_LONG * self._max_bytes:
            raise Refusal(503, "busy: too many long requests arrive; send it again", RETRY_AFTER_S)
        return has_more

    def _too_long(self) -> Refusal:
        return Refusal(413, f"the body is longer than {self._max_bytes} bytes (server.gateway.max_body_bytes)")


def parse_json(body: bytes) -> Json:
    """Parse a body. Raises Refusal (400) if it is not a JSON object, is nested too deeply, or holds too many values, a
    number that fits no tensor, or a name that Triton would cut off."""
    if sum(map(body.count, (b",", b"[", b"{"))) > MAX_VALUES:  # characters of texts count too, which are rarely as many
        raise Refusal(
            400, f"the body holds more than {MAX_VALUES} values, brackets and commas; send less in one request"
        )
    try:
        value = pydantic_core.from_json(body.removeprefix(BOM_UTF8), allow_inf_nan=False, cache_strings="none")
    except ValueError as error:
        raise Refusal(400, f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise Refusal(400, "the body must be a JSON object")
    _check(value)
    return value


def write_json(value: Json) -> bytes:
    """Serialize a JSON object to UTF-8."""
    return pydantic_core.to_json(value)


def shown(value: Any) -> str:
    """A value of a body for a message: its JSON, shortened."""
    text = pydantic_core.to_json(value).decode()
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _check(value: Any) -> None:
    """Raise Refusal unless the depth, the names and the numbers of a value are within limits. Iterates level by level,
    because recursion could overflow the stack."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict) and "\0" in "".join(item):
                raise Refusal(400, "the body holds a name with the character U+0000")
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
