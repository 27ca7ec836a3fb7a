"""HTTP/1.1 client for the upstream servers on this machine, without TLS, proxies, redirects and connection pools.

A request with httpx takes more than a millisecond of processor time, with this client a third of that.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import anyio
import h11

# Triton's header: length of the JSON in a body in which the data of tensors follow it.
HEADER_LENGTH = "inference-header-content-length"
_CONNECT_TIMEOUT_S = 2.0
_READ_BYTES = 1 << 16


class Unreachable(Exception):
    """The upstream server does not accept a connection, or `BrokenOff`."""


class BrokenOff(Unreachable):
    """The upstream server closed a connection that it had accepted before the end of the response."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """An upstream server. address: host:port. headers: sent with every request."""

    address: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class UpstreamRequest:
    """A request to forward. targets: the first one that accepts a connection gets it. timeout_s: time limit in
    total."""

    targets: Sequence[Upstream]
    method: str
    path: str
    body: bytes
    headers: Mapping[str, str]
    timeout_s: float
    request_id: str


@dataclass(frozen=True, slots=True)
class Response:
    """A response whose headers have arrived. headers: by lower-case name. chunks: yields the body as it arrives; raises
    BrokenOff."""

    status: int
    headers: Mapping[str, str]
    chunks: AsyncIterator[bytes]


Transport = Callable[[UpstreamRequest], AbstractAsyncContextManager[Response]]


@asynccontextmanager
async def request(sent: UpstreamRequest) -> AsyncGenerator[Response, None]:
    """Send a request on a new connection and yield the response. Leaving the block early cancels the request. Raises
    Unreachable.

    Connections are not reused: a Triton that is shutting down waits for idle connections before it finalizes its
    models, so it would be killed before they have saved their learned state."""
    connection = h11.Connection(h11.CLIENT)
    target, reader, writer = await _connected(sent.targets)
    try:
        writer.write(_encoded(connection, sent, target))
        head = await _next_event(connection, reader)
        if not isinstance(head, h11.Response):
            raise BrokenOff(f"not a response: {head!r}")
        headers = {name.decode(): value.decode("latin-1") for name, value in head.headers}
        yield Response(head.status_code, headers, _chunks(connection, reader))
    finally:
        writer.transport.abort()  # close would wait until the server has received the whole request


def _encoded(connection: h11.Connection, sent: UpstreamRequest, target: Upstream) -> bytes:
    headers = {"host": target.address, **sent.headers, **target.headers}
    headers |= {"x-request-id": sent.request_id, "content-length": str(len(sent.body))}
    head = connection.send(h11.Request(method=sent.method, target=sent.path, headers=list(headers.items())))
    body = connection.send(h11.Data(data=sent.body))
    connection.send(h11.EndOfMessage())
    return (head or b"") + (body or b"")


async def _chunks(connection: h11.Connection, reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while isinstance(event := await _next_event(connection, reader), h11.Data):
        yield bytes(event.data)


async def _next_event(connection: h11.Connection, reader: asyncio.StreamReader) -> object:
    try:
        while (event := connection.next_event()) is h11.NEED_DATA:
            connection.receive_data(await reader.read(_READ_BYTES))
    except (h11.RemoteProtocolError, OSError) as error:
        raise BrokenOff(str(error)) from error
    return event


async def _connected(targets: Sequence[Upstream]) -> tuple[Upstream, asyncio.StreamReader, asyncio.StreamWriter]:
    """The first server that accepts a connection, and the connection. Raises Unreachable if none does."""
    errors = []
    for target in targets:
        host, _, port = target.address.rpartition(":")
        try:
            with anyio.move_on_after(_CONNECT_TIMEOUT_S):
                return target, *await asyncio.open_connection(host, int(port))
            errors.append(f"{target.address}: no connection within {_CONNECT_TIMEOUT_S:g} s")
        except OSError as error:
            errors.append(f"{target.address}: {error!r}")
    raise Unreachable("; ".join(errors))
