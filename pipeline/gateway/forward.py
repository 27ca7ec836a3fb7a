"""Forwards a request to a Triton server on this machine and streams the response back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager

import anyio

from pipeline.gateway.bodies import Receive
from pipeline.gateway.event_stream import as_one_line, events
from pipeline.gateway.refusal import FINAL, Refusal
from pipeline.gateway.response_writer import ResponseWriter
from pipeline.gateway.upstream import HEADER_LENGTH, Response, Transport, Unreachable, UpstreamRequest
from pipeline.gateway.upstream_errors import refusal_in_event, refusal_of, text_of_body, unavailable
from pipeline.request_ids import SentId

_LONGEST_ERROR_BYTES = 1 << 16
_FORWARDED_HEADERS = ("content-type", HEADER_LENGTH)


@asynccontextmanager
async def while_connected(receive: Receive, timeout_s: float) -> AsyncGenerator[None, None]:
    """Cancel the block if the client disconnects. Raises Refusal (504) after timeout_s."""
    is_connected = True
    with anyio.move_on_after(timeout_s) as scope:

        async def watch_client() -> None:
            nonlocal is_connected
            while (await receive())["type"] != "http.disconnect":
                pass
            is_connected = False
            scope.cancel()

        watching = asyncio.create_task(watch_client())
        try:
            yield
        finally:
            watching.cancel()
    if scope.cancelled_caught and is_connected:
        raise Refusal(504, f"the request took longer than {timeout_s:g} s; lower max_tokens", headers=FINAL)


async def forward(
    transport: Transport,
    request: UpstreamRequest,
    receive: Receive,
    answer: ResponseWriter,
    sent_id: SentId,
    stop: Callable[[], None],
) -> None:
    """Forward a request and its response. sent_id: id of the request, which becomes the client's own in the response.
    stop: stops the request. Called if the client disconnects or the time is over, because Triton notices the end of a
    connection only when it sends something. Raises Refusal."""
    async with while_connected(receive, request.timeout_s):
        try:
            async with transport(request) as response:
                await _forward_response(response, request.request_id, answer, sent_id)
        except asyncio.CancelledError:
            stop()
            raise
        except Unreachable as error:
            raise unavailable() from error


async def _forward_response(response: Response, request_id: str, answer: ResponseWriter, sent_id: SentId) -> None:
    status, chunks = response.status, response.chunks
    if status >= 400:
        raise refusal_of(status, text_of_body(await start_of(chunks)), request_id)
    headers = {name: response.headers[name] for name in _FORWARDED_HEADERS if name in response.headers}
    if headers.get("content-type", "").startswith("text/event-stream"):
        async with aclosing(events(chunks)) as found:
            async for event in found:
                if (refusal := refusal_in_event(event, request_id)) is not None:
                    raise refusal
                await answer.start_stream()
                await answer.piece(as_one_line(sent_id.as_chosen(event)))
        await answer.end()
        return
    body = b"".join([chunk async for chunk in chunks])
    if body.startswith(b'{"error"'):  # Triton sends some errors with status 200
        raise refusal_of(400, text_of_body(body), request_id)
    length = int(headers.get(HEADER_LENGTH, len(body)))
    value = sent_id.as_chosen(body[:length])
    if HEADER_LENGTH in headers:
        headers[HEADER_LENGTH] = str(len(value))
    await answer.send(value + body[length:], headers, status)  # the data of tensors stay as they are


async def start_of(chunks: AsyncIterator[bytes]) -> bytes:
    """The start of a response with an error."""
    body = b""
    async for chunk in chunks:
        body += chunk
        if len(body) > _LONGEST_ERROR_BYTES:
            break
    return body[:_LONGEST_ERROR_BYTES]
