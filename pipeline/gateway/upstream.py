"""HTTP/1.1 client for the upstream servers on this machine, without TLS, proxies, redirects and connection pools.

A request with httpx takes more than a millisecond of processor time, with this client less than a third of that.
httptools parses responses in C: in Python, the parser would take most of the rest.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import anyio
import httptools

# Triton's header: length of the JSON in a body in which the data of tensors follow it.
HEADER_LENGTH = "inference-header-content-length"
_CONNECT_TIMEOUT_S = 2.0
_READ_BYTES = 1 << 16
# Characters that would end a line, or the path, of a request.
_CONTROL, _BREAKING = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]"), re.compile(r"[^!-~]")


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
    Unreachable, or ValueError for a path or a header with a line end or another control character.

    Connections are not reused: a Triton that is shutting down waits for idle connections before it finalizes its
    models, so it would be killed before they have saved their learned state."""
    target, reader, writer = await _connected(sent.targets)
    try:
        writer.write(_encoded(sent, target))
        message = _Message(reader)
        while not message.has_headers:
            await message.read()
        yield Response(message.status, message.headers, message.chunks())
    finally:
        writer.transport.abort()  # close would wait until the server has received the whole request


def _encoded(sent: UpstreamRequest, target: Upstream) -> bytes:
    headers = {"host": target.address, **sent.headers, **target.headers}
    headers |= {"x-request-id": sent.request_id, "content-length": str(len(sent.body))}
    lines = [f"{sent.method} {sent.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    if _BREAKING.search(sent.path) or any(map(_CONTROL.search, lines)):
        raise ValueError("the path or a header of a request has a character that would end it")
    return "\r\n".join([*lines, "\r\n"]).encode("latin-1") + sent.body


class _Message:
    """A response that arrives, with a length or in chunks. The parser calls the methods `on_...`."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self.headers: dict[str, str] = {}
        self.has_headers = False
        self._reader = reader
        self._parser = httptools.HttpResponseParser(self)
        self._pieces: list[bytes] = []
        self._is_complete = False

    @property
    def status(self) -> int:
        return int(self._parser.get_status_code())

    async def read(self) -> None:
        """Read what has arrived, and wait for something. Raises BrokenOff."""
        try:
            if not (data := await self._reader.read(_READ_BYTES)):
                raise BrokenOff("the connection was closed within a response")
            self._parser.feed_data(data)
        except (httptools.HttpParserError, OSError) as error:
            raise BrokenOff(str(error)) from error

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives. Raises BrokenOff."""
        while self._pieces or not self._is_complete:
            if self._pieces:
                yield self._pieces.pop(0)
            else:
                await self.read()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.has_headers = self.status >= 200  # others announce a response

    def on_body(self, piece: bytes) -> None:
        self._pieces.append(piece)

    def on_message_complete(self) -> None:
        self._is_complete = self.has_headers


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
