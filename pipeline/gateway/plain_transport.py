"""HTTP/1.1 to the servers behind the gateway: one connection per request, without TLS, proxies, redirects or pools.

httpx's own transport takes about a millisecond of a processor for each request; this one a third of that.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import anyio
import h11
import httpx

_CONNECT_TIMEOUT_S = 2.0
_READ_BYTES = 1 << 16


class PlainTransport(httpx.AsyncBaseTransport):
    """Each response ends with its connection. A Triton that is shutting down waits for every open HTTP connection, idle
    ones too, before it finalizes its models, so it would be killed before they have saved their learned state."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """The response up to its headers; its stream brings the rest, raw. Raises httpx.TransportError."""
        body = await request.aread()
        state = h11.Connection(h11.CLIENT)
        sent = state.send(h11.Request(method=request.method, target=request.url.raw_path, headers=request.headers.raw))
        sent_body = state.send(h11.Data(data=body)) if body else b""
        state.send(h11.EndOfMessage())
        reader, writer = await _connect(request.url.host, request.url.port or 80)
        stream = _Stream(state, reader, writer)
        try:
            writer.write((sent or b"") + (sent_body or b""))
            response = await stream.next_event()
            if not isinstance(response, h11.Response):
                raise httpx.RemoteProtocolError(f"not a response: {response!r}")
        except BaseException:
            await stream.aclose()
            raise
        return httpx.Response(response.status_code, headers=response.headers.raw_items(), stream=stream)


class _Stream(httpx.AsyncByteStream):
    """The body of a response, in pieces as they come. Closing it closes the connection, which cancels the request where
    it has not ended."""

    def __init__(self, state: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._state, self._reader, self._writer = state, reader, writer

    async def next_event(self) -> object:
        """Raises httpx.TransportError if there is none."""
        try:
            while (event := self._state.next_event()) is h11.NEED_DATA:
                self._state.receive_data(await self._reader.read(_READ_BYTES))
        except h11.RemoteProtocolError as error:
            raise httpx.RemoteProtocolError(str(error)) from error
        except OSError as error:
            raise httpx.ReadError(str(error)) from error
        return event

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while isinstance(event := await self.next_event(), h11.Data):
            yield bytes(event.data)

    async def aclose(self) -> None:
        self._writer.transport.abort()  # a close would wait until the server has taken the whole request


async def _connect(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        with anyio.fail_after(_CONNECT_TIMEOUT_S):
            return await asyncio.open_connection(host, port)
    except (OSError, TimeoutError) as error:
        raise httpx.ConnectError(f"{host}:{port}: {error!r}") from error
