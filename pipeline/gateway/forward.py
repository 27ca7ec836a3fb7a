"""Forwards one HTTP request to a server on this machine and streams its response back."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace

import anyio

from pipeline.gateway.annotations import ENGINE_DATA
from pipeline.gateway.bodies import Receive, parse_json, write_json
from pipeline.gateway.errors import (
    REFUSAL_MARK,
    refusal_in_body,
    refusal_in_event,
    refusal_of,
    text_of_body,
    unavailable,
)
from pipeline.gateway.refusal import Refusal
from pipeline.gateway.response_writer import Responder
from pipeline.gateway.upstream import Onward, Response, Transport, Unreachable

_LONGEST_ERROR_BYTES = 1 << 16
# Longest event that is buffered until it is complete; longer ones are forwarded unparsed.
_LONGEST_EVENT_BYTES = 1 << 20
# Dynamo's messages when it cannot reach the chosen worker (a dead worker may still be listed), or has none just now. No
# worker has received the request then.
_NO_WORKER = (b"Failed to generate completions", b"is not ready to serve requests yet", b"No workers available")
_RETRY_PAUSE_S = 0.1
# Time limit for the reason of a refusal.
_REASON_S = 5.0
_PASSED_HEADERS = ("content-type", "inference-header-content-length", "retry-after")


async def forward(transport: Transport, onward: Onward, receive: Receive, answer: Responder) -> None:
    """Forward a request and its response. If the client disconnects, the request is cancelled behind too."""
    async with until_disconnect(receive):
        await pass_on(transport, onward, answer)


@asynccontextmanager
async def until_disconnect(receive: Receive) -> AsyncGenerator[None, None]:
    """A block that is cancelled if the client disconnects."""
    async with anyio.create_task_group() as tasks:

        async def watch_client() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            tasks.cancel_scope.cancel()

        tasks.start_soon(watch_client)
        yield
        tasks.cancel_scope.cancel()


async def pass_on(transport: Transport, onward: Onward, answer: Responder) -> None:
    """Forward a request and its response."""
    try:
        with anyio.fail_after(onward.timeout_s):
            patient_until = anyio.current_time() + onward.patience_s
            while not await _attempt(transport, onward, answer, anyio.current_time() < patient_until):
                await anyio.sleep(_RETRY_PAUSE_S)
    except TimeoutError:
        await answer.refuse(Refusal(504, f"the request took longer than {onward.timeout_s:g} s"))
    except Refusal as refusal:
        await answer.refuse(await _reason_of(transport, onward, refusal))
    except Unreachable:
        await answer.refuse(unavailable())


async def _reason_of(transport: Transport, onward: Onward, refusal: Refusal) -> Refusal:
    """The worker's refusal of a request with tools, which the front end hides behind status 500: it comes with the
    first event of the same request when no call may be answered."""
    if refusal.status != 500 or not onward.is_served or b'"tools":' not in onward.body:
        return refusal
    body = parse_json(onward.body)
    body |= {"tool_choice": "none", "stream": True, "nvext": body["nvext"] | {"extra_fields": [ENGINE_DATA]}}
    with suppress(Unreachable, TimeoutError), anyio.fail_after(_REASON_S):
        async with (
            transport(replace(onward, body=write_json(body))) as response,
            aclosing(events(response.chunks)) as found,
        ):
            return refusal_in_event(await anext(found, b""), onward.request_id) or refusal
    return refusal


async def _attempt(transport: Transport, onward: Onward, answer: Responder, may_retry: bool) -> bool:
    """Send a request and forward its response. Returns False, with nothing forwarded, if a retry may help."""
    async with transport(onward) as response:
        # Its list of workers is empty; it has no answer for other models.
        is_absent = onward.is_served and response.status == 404
        if is_absent and not may_retry:
            raise unavailable()
        if may_retry and response.status in (404, 500, 503):
            start = await _start_of(response.chunks)
            if is_absent or any(words in start for words in _NO_WORKER):
                return False
            raise refusal_of(response.status, text_of_body(start), onward.request_id)
        await _pass_on(response, onward.request_id, answer)
        return True


async def _pass_on(response: Response, request_id: str, answer: Responder) -> None:
    status, chunks = response.status, response.chunks
    headers = {name: response.headers[name] for name in _PASSED_HEADERS if name in response.headers}
    if status >= 400:
        raise refusal_of(status, text_of_body(await _start_of(chunks)), request_id)
    if not headers.get("content-type", "").startswith("text/event-stream"):
        first = await anext(chunks, b"")
        if first.startswith(b'{"error"'):  # Triton answers 200 and then sends the error
            raise refusal_of(400, text_of_body(first + await _start_of(chunks)), request_id)
        if REFUSAL_MARK in first and (refusal := refusal_in_body(first + await _start_of(chunks), request_id)):
            raise refusal
        if "content-length" in response.headers:
            headers["content-length"] = response.headers["content-length"]
        await answer.start(status, headers)
        await answer.piece(first)
        async for chunk in chunks:
            await answer.piece(chunk)
        await answer.end()
        return
    headers |= {"cache-control": "no-cache", "x-accel-buffering": "no"}
    started = False
    async with aclosing(events(chunks)) as stream:
        async for event in stream:
            if (refusal := refusal_in_event(event, request_id)) is not None:
                raise refusal
            if not started:
                await answer.start(status, headers, is_stream=True)
                started = True
            await answer.piece(event)
    if not started:
        await answer.start(status, headers, is_stream=True)
    await answer.end()


async def events(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Complete server-sent events, each with the blank line after it, one or more at a time as they arrive."""
    held = b""
    async for chunk in chunks:
        held += chunk
        end = held.rfind(b"\n\n") + 2
        if end < 2:
            if len(held) > _LONGEST_EVENT_BYTES:
                yield held
                held = b""
            continue
        whole, held = held[:end], held[end:]
        if b'"error"' in whole or REFUSAL_MARK in whole:
            for event in events_of(whole):
                yield event
        else:
            yield whole
    if held:
        yield held


def events_of(whole: bytes) -> list[bytes]:
    """Single events of one or more whole ones."""
    return [event + b"\n\n" for event in whole.removesuffix(b"\n\n").split(b"\n\n")]


async def _start_of(chunks: AsyncIterator[bytes]) -> bytes:
    body = b""
    async for chunk in chunks:
        body += chunk
        if len(body) > _LONGEST_ERROR_BYTES:
            break
    return body[:_LONGEST_ERROR_BYTES]
