"""Limits of request bodies, and their new serialization for the server."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.gateway import bodies, tenants
from pipeline.gateway.bodies import MAX_DEPTH, MAX_VALUES, BodyReader, Disconnected, parse_json, write_json
from pipeline.gateway.refusal import Refusal
from tests.patience import PATIENCE_S

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
INTEGERS = st.integers(-(1 << 63), (1 << 64) - 1)
LEAVES = st.none() | st.booleans() | INTEGERS | FLOATS | st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
NAMES = st.text('ab"\\\n', max_size=3)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(NAMES, inner), max_leaves=10)


@given(st.dictionaries(NAMES, VALUES, max_size=4))
def test_a_json_object_is_the_same_after_it_was_read_and_written(value: dict[str, Any]) -> None:
    assert json.loads(write_json(parse_json(json.dumps(value).encode()))) == value


def test_a_byte_order_mark_is_ignored() -> None:
    assert parse_json(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}


@given(st.binary(max_size=200))
def test_any_bytes_are_an_object_or_refused(body: bytes) -> None:
    with suppress(Refusal):
        value = parse_json(body)
        assert json.loads(write_json(value)) == value


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'[{"a":'])
@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 150_000])
def test_deep_nesting_is_refused_closed_or_not(opening: bytes, depth: int) -> None:
    closing = {b"[": b"]", b'{"a":': b"}", b'[{"a":': b"}]"}[opening]
    for body in (b'{"a":' + opening * depth, b'{"a":' + opening * depth + b"1" + closing * depth + b"}"):
        with pytest.raises(Refusal):
            parse_json(body)


def test_the_deepest_allowed_nesting_is_taken() -> None:
    body = b'{"a":' + b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1) + b"}"

    assert write_json(parse_json(body)) == body


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "not JSON"),
        (b"[]", "must be a JSON object"),
        (b'{"a": NaN}', "not JSON"),
        (b'{"a": 1e999}', "not finite"),
        (b'{"a": [18446744073709551616]}', "more than 64 bits"),
        (b'{"a": "\\ud800"}', "not JSON"),
        (b'{"a": 1} {"b": 2}', "not JSON"),
        (b'{"a": "\xff"}', "not JSON"),
        (b'{"a": [{"b\\u0000": 1}]}', "U.0000"),
    ],
)
def test_what_triton_should_not_see_is_refused_with_a_sentence(body: bytes, sentence: str) -> None:
    with pytest.raises(Refusal, match=sentence):
        parse_json(body)


def test_more_values_than_the_limit_are_refused_and_one_less_are_taken() -> None:
    body = b'{"a":[' + b"1," * (MAX_VALUES - 2)  # two brackets
    assert len(parse_json(body + b"1]}")["a"]) == MAX_VALUES - 1
    with pytest.raises(Refusal, match="more than 524288 values"):
        parse_json(body + b"1,1]}")


def read(*messages: dict[str, Any], max_bytes: int = 10, timeout_s: float = 5.0, length: str | None = None) -> bytes:
    waiting = list(messages)

    async def receive() -> dict[str, Any]:
        if not waiting:
            await asyncio.sleep(60)
        return waiting.pop(0)

    return asyncio.run(BodyReader(max_bytes, timeout_s).read(receive, length))


def part(data: bytes, more: bool) -> dict[str, Any]:
    return {"type": "http.request", "body": data, "more_body": more}


def test_a_body_of_the_longest_size_is_put_together() -> None:
    assert read(part(b"01234", True), part(b"56789", False)) == b"0123456789"


def test_a_longer_body_is_refused_by_its_header_before_it_comes() -> None:
    with pytest.raises(Refusal) as refused:
        read(length="11")
    assert refused.value.status == 413


def test_a_longer_body_is_refused_where_it_becomes_too_long() -> None:
    with pytest.raises(Refusal) as refused:
        read(part(b"0123456789", True), part(b"x", True))
    assert refused.value.status == 413


def test_a_body_that_does_not_come_is_refused() -> None:
    with pytest.raises(Refusal) as refused:
        read(part(b"1", True), timeout_s=0.01)
    assert refused.value.status == 408


def test_a_client_that_leaves_before_its_body_came_gets_nothing() -> None:
    with pytest.raises(Disconnected):
        read(part(b"1", True), {"type": "http.disconnect"})


def test_a_suspension_of_the_process_is_no_slow_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "_LATE_S", 0.1)
    messages = [{"type": "http.request", "body": b"a", "more_body": True}, {"type": "http.request", "body": b"b"}]

    async def receive() -> Any:
        if len(messages) == 1:
            time.sleep(0.3)  # as long as the process is suspended, nothing in it runs
            await asyncio.sleep(0)
        return messages.pop(0)

    assert asyncio.run(BodyReader(10, 0.05).read(receive, None)) == b"ab"


async def test_long_bodies_that_arrive_at_the_same_time_are_bounded_and_short_ones_are_read(monkeypatch) -> None:
    monkeypatch.setattr(tenants, "SHORT_BYTES", 4)
    monkeypatch.setattr(bodies, "MAX_LONG", 2)

    reader, go_on = BodyReader(10, PATIENCE_S), asyncio.Event()

    def client(*parts: bytes) -> Any:
        messages = [*(part(data, True) for data in parts), part(b"!", False)]

        async def receive() -> Any:
            if len(messages) == 1:
                await go_on.wait()
            return messages.pop(0)

        return receive

    slow = [asyncio.ensure_future(reader.read(client(b"01", b"23456"), None)) for _ in range(6)]
    await asyncio.sleep(0)
    with pytest.raises(Refusal, match="too many long") as refused:
        await reader.read(client(b"012345678"), None)
    assert (refused.value.status, refused.value.retry_after_s) == (503, 1)
    short = asyncio.ensure_future(reader.read(client(b"0123"), None))
    await asyncio.sleep(0)
    go_on.set()
    assert await asyncio.gather(*slow, short) == [b"0123456!"] * 6 + [b"0123!"]
    assert await reader.read(client(b"012345678"), None) == b"012345678!"
