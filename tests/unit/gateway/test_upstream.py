"""Requests of the gateway to servers behind it, over real connections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from pipeline.gateway.upstream import BrokenOff, Unreachable, Upstream, UpstreamRequest, request
from tests.patience import PATIENCE_S

OK = b"HTTP/1.1 200 OK\r\n"
Work = Callable[[str], Awaitable[object]]


async def against(work: Work, *pieces: bytes, ends: bool = False) -> tuple[object, bytes]:
    """What `work` returns for the address of a server that sends these pieces, one in a write, and what the server has
    read when its client closes the connection. ends: the server closes it first."""
    read: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0.01)
        if not ends:
            request += await reader.read()  # returns when the client closes
        read.set_result(request)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        result = await work(f"127.0.0.1:{port}")
        return result, await asyncio.wait_for(read, PATIENCE_S)  # while this loop goes on


def request_to(address: str, body: bytes = b"", *others: str) -> UpstreamRequest:
    targets = [Upstream(each, {"key": f"secret of {each}"}) for each in (address, *others)]
    return UpstreamRequest(targets, "POST", "/a?b=1", body, {"a": "b"}, 1.0, "id")


async def pieces_of(address: str, *others: str) -> list[bytes]:
    async with request(request_to(address, b"asked", *others)) as response:
        return [piece async for piece in response.chunks]


async def test_an_answered_request_leaves_no_connection_open() -> None:
    """A Triton that is shutting down waits for idle connections before its models can save anything."""
    found, read = await against(pieces_of, OK + b"content-length: 2\r\n\r\nok")

    assert found == [b"ok"]
    head, *headers, end, body = read.split(b"\r\n")
    assert (head, end, body) == (b"POST /a?b=1 HTTP/1.1", b"", b"asked")
    assert {b"a: b", b"x-request-id: id", b"content-length: 5"} < set(headers)


async def test_pieces_come_as_they_were_sent() -> None:
    found, _ = await against(
        pieces_of, OK + b"transfer-encoding: chunked\r\n\r\n", b"1\r\na\r\n", b"2\r\nbc\r\n0\r\n\r\n"
    )

    assert found == [b"a", b"bc"]


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"HTTP/1.1 ",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        OK + b"content-length: 9\r\n\r\nok",
        OK + b"transfer-encoding: chunked\r\n\r\n5\r\nab",
    ],
)
async def test_a_server_that_breaks_off_is_an_error(sent: bytes) -> None:
    with pytest.raises(BrokenOff):
        await against(pieces_of, sent, ends=True)


async def test_a_server_that_is_not_there_is_an_error() -> None:
    with pytest.raises(Unreachable) as caught:
        await pieces_of("127.0.0.1:1")
    assert not isinstance(caught.value, BrokenOff)


async def test_a_stream_that_is_left_closes_its_connection() -> None:
    """Which cancels the request behind."""

    async def first(address: str) -> int:
        async with request(request_to(address)) as response:
            async for _ in response.chunks:
                break
            return response.status

    assert (await against(first, OK + b"content-length: 1000\r\n\r\na"))[0] == 200


@pytest.mark.parametrize("changes", [{"headers": {"a": "b\r\nx: y"}}, {"path": "/a HTTP/1.1\r\nx:y"}, {"path": "/a b"}])
async def test_a_header_or_a_path_cannot_begin_another_one(changes: dict[str, Any]) -> None:
    async def work(address: str) -> None:
        async with request(replace(request_to(address), **changes)):
            pass

    with pytest.raises(ValueError, match="has a character that would end it"):
        await against(work)


async def test_the_first_server_that_accepts_a_connection_gets_the_request_and_only_its_own_key() -> None:
    dead = "127.0.0.1:1"
    found, read = await against(lambda address: pieces_of(dead, address, dead), OK + b"content-length: 2\r\n\r\nok")

    assert found == [b"ok"]
    assert read.count(b"key: secret of 127.0.0.1:") == 1
    assert b"secret of 127.0.0.1:1\r" not in read
    with pytest.raises(Unreachable, match=r"127.0.0.1:1: .*; 127.0.0.1:1: "):
        await pieces_of(dead, dead)
