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
    refusal_in_body,
    refusal_in_event,
    refusal_of,
    text_of_body,
    unavailable,
    unknown_model,
)
from pipeline.gateway.event_stream import events
from pipeline.gateway.folding import FoldingResponder
from pipeline.gateway.refusal import Refusal
from pipeline.gateway.response_writer import Responder
from pipeline.gateway.resumption import ResumableResponder
from pipeline.gateway.upstream import HEADER_LENGTH, Onward, Response, Transport, Unreachable

_LONGEST_ERROR_BYTES = 1 << 16
# Dynamo's messages if it has no worker, or cannot reach the chosen one because a dead worker is still listed. No worker
# has received the request then. The first message also means that the chat template refuses the conversation, or that
# the front end cannot run the template.
_NO_WORKER = (b"Failed to generate completions", b"is not ready to serve requests yet", b"No workers available")
# Dynamo's messages if all workers that received the request have died. For requests with tools they can also mean that
# a worker has refused the request, see `_reason_of`.
_LOST_WORKER = (
    b"Failed to fold",
    b"Failed to parse chat completion response",
    b"Internal server error",
    b"Service temporarily unavailable",
)
# How often a request is sent again after that.
_MAX_LOST = 2
_RETRY_PAUSE_S = 0.1
# Time limit for the request that finds the reason of a refusal.
_REASON_S = 5.0
_PASSED_HEADERS = ("content-type", HEADER_LENGTH, "retry-after")


class _Lost(Exception):
    """The response broke off or is an error, and may be complete if the request is sent again. refusal: the error."""

    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal


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
    """Forward a request and its response. Sends errors as refusals. An OpenAI request is sent again while the front end
    cannot reach a worker, and after its workers or the front end have died."""
    resumable = ResumableResponder(answer) if onward.patience_s else None
    try:
        with anyio.fail_after(onward.timeout_s):
            patient_until = anyio.current_time() + onward.patience_s
            num_absent, num_lost, has_worker = 0, 0, False
            while True:
                try:
                    if await _attempt(transport, onward, resumable or answer, anyio.current_time() < patient_until):
                        return
                except Unreachable as error:
                    if anyio.current_time() >= patient_until:
                        raise unavailable() from error
                except _Lost as lost:
                    num_lost += 1
                    reason = await _reason_of(transport, onward, lost.refusal)
                    can_be_sent_again = num_lost <= _MAX_LOST and resumable is not None and resumable.resume()
                    if reason is not lost.refusal or not can_be_sent_again:
                        raise reason from lost
                    patient_until = anyio.current_time() + onward.patience_s
                else:
                    num_absent += 1
                    # Two dead workers may fail the first two attempts; the front end then avoids them for a while.
                    if has_worker:
                        raise await _refusal_of_conversation(transport, onward)
                    if num_absent == 2:
                        has_worker = await _has_worker(transport, onward)
                await anyio.sleep(_RETRY_PAUSE_S)
    except TimeoutError:
        await answer.refuse(Refusal(504, f"the request took longer than {onward.timeout_s:g} s"))
    except Refusal as refusal:
        await answer.refuse(refusal)


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
    """Send a request and forward its response. Returns False, without a response to the client, if no worker has
    received the request and may_retry is true. Raises Unreachable before a response, _Lost if it breaks off."""
    async with transport(onward) as response:
        try:
            if response.status < 400:
                await _forward_response(response, onward, answer)
                return True
            start = await _start_of(response.chunks)
        except Unreachable as error:
            raise _Lost(unavailable()) from error
    # The front end returns 404 for its own model while it has no worker.
    is_absent = onward.is_served and response.status == 404
    if may_retry and (is_absent or any(words in start for words in _NO_WORKER)):
        return False
    if is_absent:
        raise unavailable()
    if response.status == 404 and onward.path.startswith("/v1/"):
        body = parse_json(onward.body) if onward.body else {"model": onward.path.removeprefix("/v1/models/")}
        raise unknown_model(str(body.get("model")))
    raise _exception_of(refusal_of(response.status, text_of_body(start), onward.request_id), start)


def _exception_of(refusal: Refusal, error: bytes) -> Refusal | _Lost:
    """The exception for an error of the upstream server. refusal: for the client."""
    return _Lost(refusal) if any(words in error for words in _LOST_WORKER) else refusal


async def _forward_response(response: Response, onward: Onward, answer: Responder) -> None:
    status, chunks, request_id = response.status, response.chunks, onward.request_id
    headers = {name: response.headers[name] for name in _PASSED_HEADERS if name in response.headers}
    if not headers.get("content-type", "").startswith("text/event-stream"):
        first = await anext(chunks, b"")
        if first.startswith(b'{"error"'):  # Triton sends some errors with status 200
            raise refusal_of(400, text_of_body(first + await _start_of(chunks)), request_id)
        if onward.patience_s:  # a worker's refusal is at the end, and until then the request can be sent again
            first += b"".join([chunk async for chunk in chunks])
            if (refusal := refusal_in_body(first, request_id)) is not None:
                raise refusal
            headers["content-length"] = str(len(first))
        elif "content-length" in response.headers:
            headers["content-length"] = response.headers["content-length"]
        await answer.start(status, headers)
        await answer.piece(first)
        async for chunk in chunks:
            await answer.piece(chunk)
        await answer.end()
        return
    if onward.folds:
        answer = FoldingResponder(answer)
    headers |= {"cache-control": "no-cache", "x-accel-buffering": "no"}
    started = False
    async with aclosing(events(chunks)) as stream:
        async for event in stream:
            if (refusal := refusal_in_event(event, request_id)) is not None:
                raise _exception_of(refusal, event)
            if not started:
                await answer.start(status, headers, is_stream=True)
                started = True
            await answer.piece(event)
    if not started:
        await answer.start(status, headers, is_stream=True)
    await answer.end()


async def _start_of(chunks: AsyncIterator[bytes]) -> bytes:
    body = b""
    async for chunk in chunks:
        body += chunk
        if len(body) > _LONGEST_ERROR_BYTES:
            break
    return body[:_LONGEST_ERROR_BYTES]
