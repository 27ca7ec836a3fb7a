"""Passes one HTTP request on to a server of this machine and its response back, piece by piece as it comes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass

import anyio
import httpx

from pipeline.gateway.answer import Answer
from pipeline.gateway.bodies import Receive
from pipeline.gateway.errors import error_in_event, refusal_of, text_of_body, unavailable
from pipeline.gateway.refusal import Refusal

_CONNECT_TIMEOUT_S = 2.0
_LONGEST_ERROR_BYTES = 1 << 16
# Longest event that is held back until it is whole; longer ones are passed on unread.
_LONGEST_EVENT_BYTES = 1 << 20
# How Dynamo's front end says that it cannot reach the worker that it chose: one that died is listed for ten seconds.
_NO_WORKER = b"Failed to generate completions"
_RETRY_PAUSE_S = 0.1
_PASSED_HEADERS = ("content-type", "inference-header-content-length", "retry-after")


@dataclass(frozen=True, slots=True)
class Target:
    """A server behind the gateway. url: without a path. headers: sent with every request."""

    url: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Onward:
    """A request as it is passed on. timeout_s: how long it may take in all. patience_s: for how long it is sent again
    while the server behind cannot reach what stands behind it; nothing has been done or answered then."""

    target: Target
    method: str
    path: str
    body: bytes
    headers: Mapping[str, str]
    timeout_s: float
    request_id: str
    patience_s: float = 0.0


def create_client() -> httpx.AsyncClient:
    """The client with which requests are passed on. How long a response may take is up to each request.

    It keeps no connection for later: a Triton that is told to end waits for every open HTTP connection, idle ones too,
    before it finalizes its models, so it would be killed before they have saved what they learnt."""
    limits = httpx.Limits(max_keepalive_connections=0)
    timeout = httpx.Timeout(None, connect=_CONNECT_TIMEOUT_S)
    headers = {"accept-encoding": "identity", "user-agent": "lookahead-gateway"}
    return httpx.AsyncClient(limits=limits, timeout=timeout, trust_env=False, headers=headers)


async def forward(client: httpx.AsyncClient, onward: Onward, receive: Receive, answer: Answer) -> None:
    """Send a request on and answer with its response. A client that leaves ends the request behind too."""
    async with anyio.create_task_group() as tasks:

        async def leave_with_client() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            tasks.cancel_scope.cancel()

        tasks.start_soon(leave_with_client)
        await _forward(client, onward, answer)
        tasks.cancel_scope.cancel()


async def _forward(client: httpx.AsyncClient, onward: Onward, answer: Answer) -> None:
    request = client.build_request(
        onward.method,
        onward.target.url + onward.path,
        content=onward.body or None,
        headers={**onward.headers, **onward.target.headers, "x-request-id": onward.request_id},
    )
    try:
        with anyio.fail_after(onward.timeout_s):
            patient_until = anyio.current_time() + onward.patience_s
            while not await _attempt(client, request, onward, answer, anyio.current_time() < patient_until):
                await anyio.sleep(_RETRY_PAUSE_S)
    except TimeoutError:
        await answer.refuse(Refusal(504, f"the request took longer than {onward.timeout_s:g} s"))
    except Refusal as refusal:
        await answer.refuse(refusal)
    except httpx.HTTPError:
        await answer.refuse(unavailable())


async def _attempt(
    client: httpx.AsyncClient, request: httpx.Request, onward: Onward, answer: Answer, may_retry: bool
) -> bool:
    """Send a request and pass its response on. Returns False, and passes nothing on, if it is worth another attempt."""
    response = await client.send(request, stream=True)
    try:
        if may_retry and response.status_code == 500:
            start = await _start_of(response.aiter_raw())
            if _NO_WORKER in start:
                return False
            raise refusal_of(response.status_code, text_of_body(start), onward.request_id)
        await _pass_on(response, onward.request_id, answer)
        return True
    finally:
        # A response that was not read to its end closes its connection, which cancels the request behind.
        with anyio.CancelScope(shield=True):
            await response.aclose()


async def _pass_on(response: httpx.Response, request_id: str, answer: Answer) -> None:
    status = response.status_code
    headers = {name: response.headers[name] for name in _PASSED_HEADERS if name in response.headers}
    if status >= 400:
        raise refusal_of(status, text_of_body(await _start_of(response.aiter_raw())), request_id)
    if not headers.get("content-type", "").startswith("text/event-stream"):
        chunks = response.aiter_raw()
        first = await anext(chunks, b"")
        if first.startswith(b'{"error"'):  # Triton answers 200 and then tells of the error
            raise refusal_of(400, text_of_body(first + await _start_of(chunks)), request_id)
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
    async with aclosing(events(response.aiter_raw())) as stream:
        async for event in stream:
            if (text := error_in_event(event)) is not None:
                raise refusal_of(400, text, request_id)
            if not started:
                await answer.start(status, headers, is_stream=True)
                started = True
            await answer.piece(event)
    if not started:
        await answer.start(status, headers, is_stream=True)
    await answer.end()


async def events(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Whole server-sent events, each with the blank line behind it, one or more at a time as they come."""
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
        if b'"error"' in whole:
            for event in whole.removesuffix(b"\n\n").split(b"\n\n"):
                yield event + b"\n\n"
        else:
            yield whole
    if held:
        yield held


async def _start_of(chunks: AsyncIterator[bytes]) -> bytes:
    body = b""
    async for chunk in chunks:
        body += chunk
        if len(body) > _LONGEST_ERROR_BYTES:
            break
    return body[:_LONGEST_ERROR_BYTES]
