"""Connections that send their headers too slowly are closed; others are not."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
import pytest
import uvicorn

from pipeline.gateway import connections
from pipeline.gateway.__main__ import _listening
from pipeline.gateway.connections import for_this_machine, in_origin_form, uvicorn_options, with_one_length
from tests.patience import PATIENCE_S
from tests.unit.gateway.gateways import GENERATE, behind, http_gateway, spec_of, until

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
TIMEOUT_S = 0.2


async def prompt(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def app(scope, receive, send):
    await asyncio.sleep(2 * TIMEOUT_S)  # to answer may take longer than to ask
    await prompt(scope, receive, send)


@asynccontextmanager
async def serving(
    application: Any = app, timeout_s: float = PATIENCE_S, max_connections: int = 100
) -> AsyncIterator[tuple[str, int]]:
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(application, **uvicorn_options(timeout_s, max_connections)))
    task = asyncio.ensure_future(server.serve([listening]))
    try:
        yield listening.getsockname()
    finally:
        server.should_exit = True
        await task


async def ask(address: tuple[str, int], *parts: bytes, pause_s: float = 0.0) -> bytes:
    """What comes back on a connection that sends these parts with pauses between them."""
    reader, writer = await asyncio.open_connection(*address)
    found = b""
    try:
        for part in parts:
            writer.write(part)
            await asyncio.sleep(pause_s)
        while not found.endswith(b"ok") and (data := await asyncio.wait_for(reader.read(1000), PATIENCE_S)):
            found += data
    except ConnectionError:
        pass
    writer.close()
    return found


async def test_slow_headers_are_cut_off_and_slow_answers_are_not():
    async with serving(timeout_s=TIMEOUT_S) as address:
        silent, dripping, *quick = await asyncio.gather(
            ask(address),
            ask(address, *(bytes([byte]) for byte in REQUEST), pause_s=0.02),
            ask(address, REQUEST),
        )
        while not quick[-1].endswith(b"ok") and len(quick) < 20:  # on a busy machine it was not quick
            quick.append(await ask(address, REQUEST))
    assert silent == b""
    assert not dripping.endswith(b"ok")
    assert quick[-1].endswith(b"ok")


async def test_connections_that_wait_for_a_request_give_way_to_new_ones(monkeypatch):
    """Before their first request or after one. Those with a running request stay."""
    monkeypatch.setattr(connections, "IDLE_S", PATIENCE_S)

    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def first_waits(scope, receive, send):
        if not begun.is_set():
            begun.set()
            await goes_on.wait()
        await prompt(scope, receive, send)

    async with serving(first_waits, max_connections=4) as address:
        running = asyncio.ensure_future(ask(address, REQUEST))
        await begun.wait()
        silent = [await asyncio.open_connection(*address) for _ in range(6)]
        assert b"503" in await ask(address, REQUEST)
        monkeypatch.setattr(connections, "IDLE_S", 0.0)
        silent.append(await asyncio.open_connection(*address))
        used, writer = silent[-1]
        writer.write(REQUEST)
        assert (await used.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        for _ in range(6):
            assert (await ask(address, REQUEST)).endswith(b"ok")
            silent.append(await asyncio.open_connection(*address))

        goes_on.set()
        assert (await running).endswith(b"ok")
        for reader, _ in silent[:6]:
            with suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
        for _, writer in silent:
            writer.close()


async def test_too_many_running_requests_are_refused():
    goes_on = asyncio.Event()

    async def waits(scope, receive, send):
        await goes_on.wait()
        await prompt(scope, receive, send)

    async with serving(waits, max_connections=4) as address:
        asked = [asyncio.ensure_future(ask(address, REQUEST)) for _ in range(6)]
        await until(lambda: sum(each.done() for each in asked) >= 2)
        assert all(b"503" in each.result() for each in asked if each.done())
        goes_on.set()
        await asyncio.gather(*asked)
        assert (await ask(address, REQUEST)).endswith(b"ok")


async def test_a_client_that_does_not_read_its_response_is_disconnected_and_a_slow_one_is_not(monkeypatch):
    """Otherwise its request would hold its place for ever."""
    monkeypatch.setattr(connections, "STALL_S", 1.0)
    num_bytes = 1 << 24  # more than the buffers of both sockets hold
    ended: list[str] = []

    async def long(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"a" * num_bytes, "more_body": True})
        await send({"type": "http.response.body", "body": b"ok"})
        ended.append(scope["path"])

    async def connected(address: tuple[str, int], path: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        client.connect(address)
        reader, writer = await asyncio.open_connection(sock=client, limit=1 << 16)
        writer.write(b"GET " + path + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        return reader, writer

    async with serving(long) as address:
        _, silent = await connected(address, b"/silent")
        slow, writer = await connected(address, b"/slow")
        found = b""
        while data := await asyncio.wait_for(slow.read(1 << 17), PATIENCE_S):
            found = data
            await asyncio.sleep(0.005)
        assert found.endswith(b"ok\r\n0\r\n\r\n")
        await until(lambda: len(ended) == 2)
        for each in (silent, writer):
            each.close()
    assert sorted(ended) == ["/silent", "/slow"]


async def test_headers_without_an_end_are_refused():
    async with serving() as address:
        assert b"400" in await ask(address, b"GET / HTTP/1.1\r\nx: " + b"a" * 40_000)


async def test_the_rest_of_a_refused_body_is_not_read():
    """However long it is: the connection is closed behind the answer."""

    async with serving(http_gateway(behind(), spec_of(max_body_bytes=2000)).app()) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"POST " + GENERATE.encode() + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(), PATIENCE_S)  # up to the end of the connection
        writer.close()
    assert answer.startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("method", [b"GET", b"HEAD", b"OPTIONS"])
async def test_a_body_that_nobody_reads_ends_the_connection_and_cannot_hold_it(method):
    """It could arrive byte by byte for ever, without a time limit."""

    async with serving(prompt, max_connections=3) as address:
        held = [await asyncio.open_connection(*address) for _ in range(2)]
        for reader, writer in held:
            writer.write(method + b" / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n1")
            assert (await asyncio.wait_for(reader.read(), PATIENCE_S)).startswith(b"HTTP/1.1 200 ")
            writer.close()
        assert (await ask(address, REQUEST)).endswith(b"ok")


async def test_a_target_that_is_a_whole_url_is_its_path_and_its_host():
    """The host is checked in `for_this_machine`."""
    found_in = {
        b"http://localhost:8080/v2/%61?b=c": ("/v2/a", b"localhost:8080"),
        b"HTTPS://127.0.0.1": ("/", b"127.0.0.1"),
        b"http://[::1/v2": ("/v2", b"[::1"),
        b"//evil/v2": ("//evil/v2", b"x"),
        b"/http://evil/v2": ("/http://evil/v2", b"x"),
    }
    scopes: list[Any] = []

    async def record(scope, receive, send):
        scopes.append(scope)
        await prompt(scope, receive, send)

    async with serving(in_origin_form(record)) as address:
        for target in found_in:
            assert (await ask(address, b"GET " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n")).endswith(b"ok")
    assert [(scope["path"], dict(scope["headers"])[b"host"]) for scope in scopes] == list(found_in.values())


async def test_pieces_of_a_response_are_sent_at_once():
    listening = _listening("127.0.0.1", 0)
    options: list[int] = []

    async def keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        options.append(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    async with await asyncio.start_server(keep, sock=listening):
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        await reader.read()
        writer.close()
    assert options[0]


async def test_a_request_with_two_lengths_is_refused_and_what_follows_is_no_request():
    lengths = b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
    two_requests = b"POST / HTTP/1.1\r\nHost: x\r\n" + lengths + b"0\r\n\r\n" + REQUEST

    async with serving(with_one_length(app)) as address:
        found = await ask(address, two_requests)
    assert found.startswith(b"HTTP/1.1 400")
    assert found.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "127.0.0.1:8080"}, 200),
        ({"host": "LocalHost:8080", "origin": "http://127.0.0.1:3000"}, 200),
        ({"host": "[::1]"}, 200),
        ({"host": ""}, 200),
        ({"host": "evil.example:8080"}, 403),
        ({"host": "127.0.0.1.evil.example"}, 403),
        ({"host": "localhost", "origin": "https://evil.example"}, 403),
        ({"host": "localhost", "origin": "null"}, 403),
    ],
)
def test_without_keys_pages_of_other_sites_reach_nothing(headers, status):
    async def ask_with(path: str) -> httpx.Response:
        transport = httpx.ASGITransport(for_this_machine(prompt))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.post(path, headers=headers)

    openai, triton = asyncio.run(ask_with("/v1/chat/completions")), asyncio.run(ask_with("/v2/models"))
    assert (openai.status_code, triton.status_code) == (status, status)
    if status == 403:
        assert openai.json()["error"]["message"] == triton.json()["error"]
