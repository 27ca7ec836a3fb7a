"""Requests to Dynamo's front end. The gateway requests every response as a stream.

For a whole response the front end (1.4.2) runs the parser of tool calls even if the request has no tools, and turns a
text such as `{"name": "Ann", "age": 7}` into a call. It also completes a call that `max_tokens` has cut, with wrong
arguments.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import Any

import anyio

from pipeline.gateway.annotations import ENGINE_DATA, NAMESPACE, read_annotations
from pipeline.gateway.bodies import Json, write_json
from pipeline.gateway.event_stream import END, events, parsed
from pipeline.gateway.forward import start_of
from pipeline.gateway.refusal import FINAL, Refusal
from pipeline.gateway.resumption import Resumption
from pipeline.gateway.upstream import BrokenOff, Transport, Unreachable, UpstreamRequest
from pipeline.gateway.upstream_errors import (
    refusal_in_chunk,
    refusal_of,
    text_of_body,
    text_of_json,
    unavailable,
    unknown_model,
)

# Time for which a request is retried while no worker can be reached. Front end and workers start again in 6 s on an
# idle machine, and in more than 20 s on two cores with a load of 15.
_PATIENCE_S = 60.0
# Dynamo's messages if it has no worker, or cannot reach the chosen one because a dead worker is still listed. No worker
# has received the request then. The first message also means that the chat template refuses the conversation, or that
# the front end cannot run the template.
_NO_WORKER = ("Failed to generate completions", "is not ready to serve requests yet", "No workers available")
# Dynamo's messages if all workers that received the request have died. For requests with tools they can also mean that
# a worker has refused the request, see `_reason_of`.
_LOST_WORKER = ("Internal server error", "Service temporarily unavailable")
# How often a request is sent again after that.
_MAX_LOST = 2
_RETRY_PAUSE_S = 0.1
# Pause between two checks whether Triton is ready.
_READY_PAUSE_S = 0.5
# Path that the front end always answers.
_LIVE = "/live"
# Sentence if the front end goes on running and closes the connection, as if it panics on a request. The id of the
# request follows.
_BROKEN = "the OpenAI front end broke off its response to this request; its log has the reason under"
# Sentence if only the front end's template engine refuses a conversation. The id of the request follows.
_NO_REASON = "the OpenAI front end cannot apply the chat template to these messages; its log has the reason under"
# Time limit for the request that finds the reason of a refusal.
_REASON_S = 5.0


@dataclass(frozen=True, slots=True)
class FrontEndRequest(UpstreamRequest):
    """A request to the front end. sent: its JSON, from which the body is made when it is sent. triton_status: returns
    200 if a Triton server of this machine is ready. is_served: whether the front end serves the requested model, so
    that 404 means that it has no worker at the moment. renderer: template, without a body, of the request to the Triton
    model that reports why the chat template refuses a conversation; None without a conversation. is_whole: whether the
    client receives the stream as a whole response. listed_s: see `DeploymentSpec`."""

    sent: Json
    triton_status: Callable[[], Awaitable[int]]
    is_served: bool = False
    renderer: UpstreamRequest | None = None
    is_whole: bool = False
    listed_s: float = 0.0


class _Absent(Exception):
    """No worker has received the request, and it may be sent again."""


class _Lost(Exception):
    """The response is an error or, with is_broken, broke off, and may be complete if the request is sent again.
    refusal: the error."""

    def __init__(self, refusal: Refusal, is_broken: bool = False) -> None:
        self.refusal = refusal
        self.is_broken = is_broken


async def chunks_of(transport: Transport, request: FrontEndRequest) -> AsyncGenerator[Json | bytes, None]:
    """Yield the chunks of the response, and events without JSON as they are. Sends the request again while the front
    end cannot reach a worker, and after its workers or the front end have died. Raises Refusal."""
    resumption, listed_until = Resumption(), anyio.current_time() + request.listed_s
    num_absent, num_lost, num_broken, ready_until = 0, 0, 0, math.inf
    has_worker: bool | None = None
    is_accepted = False
    while True:
        patient_until = listed_until + _PATIENCE_S
        try:
            async with aclosing(_attempt(transport, request, anyio.current_time() < patient_until)) as items:
                # Nothing of an incomplete response is used if the client receives it as a whole.
                async for item in _all_of(items) if request.is_whole else items:
                    rest = resumption.rest_of(item) if isinstance(item, dict) else item
                    if rest is not None:
                        yield rest
            return
        except Unreachable as error:
            if anyio.current_time() >= patient_until:
                raise unavailable() from error
        except _Lost as lost:
            num_lost += 1
            num_broken += lost.is_broken
            can_resume = resumption.resume()
            # A front end that runs now may have started again since the first break: this process may notice it late.
            is_certain = not lost.is_broken or num_broken > 1 or not can_resume
            reason = await _reason_of(transport, request, lost) if is_certain else lost.refusal
            if reason is not lost.refusal or not can_resume:
                raise reason from lost
            if num_lost > _MAX_LOST:
                if await request.triton_status() != 200:
                    raise unavailable() from lost
                if request.sent.get("tools"):  # a full queue looks the same, and had room again when `_reason_of` asked
                    reason = refusal_of(503, reason.sentence, request.request_id)
                raise reason from lost
            # While no Triton server of the fleet is ready, each attempt is lost within seconds.
            ready_until = min(ready_until, anyio.current_time() + _PATIENCE_S)
            while anyio.current_time() < ready_until and await request.triton_status() != 200:
                await anyio.sleep(_READY_PAUSE_S)
            listed_until = anyio.current_time() + request.listed_s
        except _Absent:
            num_absent += 1
            if has_worker:
                assert request.renderer is not None, "has_worker is false without a conversation"
                if not is_accepted:
                    with suppress(Unreachable, TimeoutError):  # Triton is busy, and is asked again
                        if refusal := await refusal_of_prompt(transport, request.renderer, request.sent):
                            raise refusal from None
                        is_accepted = True
                # As long as a dead worker is listed, attempts may reach it, and those of a session reach no other.
                if is_accepted and anyio.current_time() >= listed_until:
                    raise Refusal(400, f"{_NO_REASON} {request.request_id}") from None
            elif has_worker is None and num_absent > 1:
                has_worker = await _has_worker(transport, request)
        await anyio.sleep(_RETRY_PAUSE_S)


async def _all_of(items: AsyncGenerator[Json | bytes, None]) -> AsyncGenerator[Json | bytes, None]:
    for item in [item async for item in items]:
        yield item


async def _attempt(
    transport: Transport, request: FrontEndRequest, may_retry: bool
) -> AsyncGenerator[Json | bytes, None]:
    """Send a request and yield the response. Raises _Absent only if may_retry is true, Unreachable without a
    connection, _Lost if it breaks off, which can be before the headers of the response, or ends without END: so the
    front end ends a response whose workers were silent for too long."""
    try:
        async with transport(replace(request, body=write_json(request.sent))) as response:
            if response.status < 400:
                is_complete = False
                async with aclosing(events(response.chunks)) as found:
                    async for event in found:
                        item = parsed(event)
                        if isinstance(item, dict) and (refusal := refusal_in_chunk(item, request.request_id)):
                            raise _exception_of(refusal, text_of_json(item))
                        is_complete = is_complete or item == END
                        yield item
                if not is_complete:
                    raise _Lost(unavailable())
                return
            text = text_of_body(await start_of(response.chunks))
    except BrokenOff as error:
        raise _Lost(unavailable(), is_broken=True) from error
    has_no_model = request.is_served and response.status == 404  # without a worker
    if has_no_model or any(words in text for words in _NO_WORKER):
        raise _Absent if may_retry else unavailable()
    if response.status == 404:
        raise unknown_model(str(request.sent.get("model")))
    raise _exception_of(refusal_of(response.status, text, request.request_id), text)


def _exception_of(refusal: Refusal, text: str) -> Refusal | _Lost:
    """The exception for an error of the front end. refusal: for the client. text: the front end's message."""
    return _Lost(refusal) if any(words in text for words in _LOST_WORKER) else refusal


async def _has_worker(transport: Transport, request: FrontEndRequest) -> bool | None:
    """Whether the front end answers a plain prompt, where it fails on a conversation. False without a conversation,
    None if the front end does not answer in time."""
    if request.renderer is None:
        return False
    body = {"model": request.sent["model"], "prompt": "a", "max_tokens": 1}
    with suppress(Unreachable, TimeoutError), anyio.fail_after(_REASON_S):
        async with transport(replace(request, path="/v1/completions", body=write_json(body))) as response:
            return response.status == 200
    return None


async def refusal_of_prompt(transport: Transport, renderer: UpstreamRequest, sent: Json) -> Refusal | None:
    """Triton's refusal of the conversation or the prompt of a request to the front end, from a request for one token;
    None if Triton accepts it. Raises Unreachable or TimeoutError without an answer. renderer, sent: see
    `FrontEndRequest`."""
    generate = {"max_tokens": 1, "namespace": read_annotations(sent["nvext"]["annotations"]).get(NAMESPACE, "")}
    prompt, messages = sent.get("prompt"), sent.get("messages")
    generate["text_input"] = prompt if isinstance(prompt, str) else ""
    if "prompt" not in sent and isinstance(messages, list):
        generate["messages"] = json.dumps([_with_text(message) for message in messages])
    with anyio.fail_after(_REASON_S):
        async with transport(replace(renderer, body=write_json(generate))) as response:
            if response.status == 400:
                return refusal_of(400, text_of_body(await start_of(response.chunks)), renderer.request_id)
            return None


def _with_text(message: Any) -> Any:
    """The message with its content parts joined to one text."""
    parts = message.get("content") if isinstance(message, dict) else None
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        return message
    return message | {"content": "\n".join(str(part.get("text")) for part in parts)}


async def _reason_of(transport: Transport, request: FrontEndRequest, lost: _Lost) -> Refusal:
    """The reason of a loss that occurs again if the request is sent again; else `lost.refusal`."""
    if not lost.is_broken:
        return await _reason_with_tools(transport, request, lost.refusal)
    await anyio.sleep(_RETRY_PAUSE_S)  # for a front end that is ending
    with suppress(Unreachable, TimeoutError), anyio.fail_after(_REASON_S):
        async with transport(replace(request, method="GET", path=_LIVE)):
            return Refusal(500, f"{_BROKEN} {request.request_id}", headers=FINAL)
    return lost.refusal


async def _reason_with_tools(transport: Transport, request: FrontEndRequest, refusal: Refusal) -> Refusal:
    """The worker's refusal of a request with tools, for which the front end reports an error without the reason. The
    same request without tool calls returns the refusal in its first event."""
    if refusal.status != 500 or not request.is_served or not request.sent.get("tools"):
        return refusal
    extension = request.sent["nvext"] | {"extra_fields": [ENGINE_DATA]}
    body = request.sent | {"tool_choice": "none", "nvext": extension}
    with suppress(Unreachable, TimeoutError), anyio.fail_after(_REASON_S):
        async with (
            transport(replace(request, body=write_json(body))) as response,
            aclosing(events(response.chunks)) as found,
        ):
            item = parsed(await anext(found, b""))
            return (refusal_in_chunk(item, request.request_id) if isinstance(item, dict) else None) or refusal
    return refusal
