"""Forwards an HTTP request to an upstream server on this machine and streams the response back."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import anyio

from pipeline.gateway.annotations import ENGINE_DATA, NAMESPACE, read_annotations
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
from pipeline.gateway.upstream import HEADER_LENGTH, Onward, Response, Transport, Unreachable

_LONGEST_ERROR_BYTES = 1 << 16
# Longest event that is buffered until it is complete. Longer events are forwarded unparsed.
_LONGEST_EVENT_BYTES = 1 << 20
# Dynamo's messages if it has no worker, or cannot reach the chosen one because a dead worker is still listed. No worker
# has received the request then. The first message also means that the chat template refuses the conversation, or that
# the front end cannot run the template.
_NO_WORKER = (b"Failed to generate completions", b"is not ready to serve requests yet", b"No workers available")
_RETRY_PAUSE_S = 0.1
# Time limit for the request that finds the reason of a refusal.
_REASON_S = 5.0
_PASSED_HEADERS = ("content-type", HEADER_LENGTH, "retry-after")


async def forward(transport: Transport, onward: Onward, receive: Receive, answer: Responder) -> None:
    """Forward a request and its response. If the client disconnects, cancel the upstream request."""
    async with until_disconnect(receive):
        await pass_on(transport, onward, answer)


@asynccontextmanager
async def until_disconnect(receive: Receive) -> AsyncGenerator[None, None]:
    """Cancel the block if the client disconnects."""
    async with anyio.create_task_group() as tasks:

        async def watch_client() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            tasks.cancel_scope.cancel()

        tasks.start_soon(watch_client)
        yield
        tasks.cancel_scope.cancel()


async def pass_on(transport: Transport, onward: Onward, answer: Responder) -> None:
    """Forward a request and its response, with retries while the front end has no worker. Sends errors as refusals."""
    try:
        with anyio.fail_after(onward.timeout_s):
            patient_until = anyio.current_time() + onward.patience_s
            num_failed, has_worker = 0, False
            while not await _attempt(transport, onward, answer, anyio.current_time() < patient_until):
                num_failed += 1
                # Two dead workers may fail the first two attempts. The front end does not choose them again at once.
                if has_worker:
                    raise await _refusal_of_conversation(transport, onward)
                if num_failed == 2:
                    has_worker = await _has_worker(transport, onward)
                await anyio.sleep(_RETRY_PAUSE_S)
    except TimeoutError:
        await answer.refuse(Refusal(504, f"the request took longer than {onward.timeout_s:g} s"))
    except Refusal as refusal:
        await answer.refuse(await _reason_of(transport, onward, refusal))
    except Unreachable:
        await answer.refuse(unavailable())


async def _has_worker(transport: Transport, onward: Onward) -> bool:
    """Whether the front end answers a plain prompt, where it fails on a conversation. False without a conversation."""
    if onward.renderer is None:
        return False
    body = {"model": parse_json(onward.body)["model"], "prompt": "a", "max_tokens": 1}
    with suppress(Unreachable, TimeoutError), anyio.fail_after(_REASON_S):
        async with transport(replace(onward, path="/v1/completions", body=write_json(body))) as response:
            return response.status == 200
    return False


async def _refusal_of_conversation(transport: Transport, onward: Onward) -> Refusal:
    """Refusal for a conversation that the front end cannot convert to a prompt. A request to Triton for one token
    returns the reason, unless it is one of the front end's template engine only."""
    assert onward.renderer is not None
    body = parse_json(onward.body)
    asked = {
        "text_input": "",
        "messages": json.dumps([_with_text(message) for message in body.get("messages") or ()]),
        "max_tokens": 1,
        "namespace": read_annotations(body["nvext"]["annotations"]).get(NAMESPACE, ""),
    }
    with suppress(Unreachable, TimeoutError), anyio.fail_after(_REASON_S):
        async with transport(replace(onward.renderer, body=write_json(asked))) as response:
            if response.status == 400:
                return refusal_of(400, text_of_body(await _start_of(response.chunks)), onward.request_id)
    sentence = "the OpenAI front end cannot apply the chat template to these messages; its log says why under"
    return Refusal(400, f"{sentence} {onward.request_id}")


def _with_text(message: Any) -> Any:
    """The message with its content parts joined to one text."""
    parts = message.get("content") if isinstance(message, dict) else None
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        return message
    return message | {"content": "\n".join(str(part.get("text")) for part in parts)}


async def _reason_of(transport: Transport, onward: Onward, refusal: Refusal) -> Refusal:
    """The worker's refusal of a request with tools, for which the front end returns status 500 without the reason. The
    same request as a stream and without tool calls returns the refusal in its first event."""
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
    """Send a request and forward its response. Returns False, without a response to the client, if a retry may help."""
    async with transport(onward) as response:
        # The front end returns 404 for its own model while it has no worker.
        is_absent = onward.is_served and response.status == 404
        if is_absent and not may_retry:
            raise unavailable()
        if may_retry and response.status in (404, 500, 503):
            start = await _start_of(response.chunks)
            if is_absent or any(words in start for words in _NO_WORKER):
                return False
            raise refusal_of(response.status, text_of_body(start), onward.request_id)
        await _forward_response(response, onward.request_id, answer)
        return True


async def _forward_response(response: Response, request_id: str, answer: Responder) -> None:
    status, chunks = response.status, response.chunks
    headers = {name: response.headers[name] for name in _PASSED_HEADERS if name in response.headers}
    if status >= 400:
        raise refusal_of(status, text_of_body(await _start_of(chunks)), request_id)
    if not headers.get("content-type", "").startswith("text/event-stream"):
        first = await anext(chunks, b"")
        if first.startswith(b'{"error"'):  # Triton sends some errors with status 200
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
    """Yield server-sent events as they arrive. An item is one or more complete events with their blank lines; an event
    with an error is an item of its own."""
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
    """Split complete events, each with the blank line after it."""
    return [event + b"\n\n" for event in whole.removesuffix(b"\n\n").split(b"\n\n")]


async def _start_of(chunks: AsyncIterator[bytes]) -> bytes:
    body = b""
    async for chunk in chunks:
        body += chunk
        if len(body) > _LONGEST_ERROR_BYTES:
            break
    return body[:_LONGEST_ERROR_BYTES]
