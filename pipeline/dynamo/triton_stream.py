"""HTTP client of `lookahead_bls` with token ids as input and output.

A stream over gRPC takes more time (docs/decisions/101).
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import anyio
import numpy as np

from pipeline.errors import EngineError, RequestError, streamed_error
from pipeline.gateway.bodies import Json, write_json
from pipeline.gateway.event_stream import events, parsed
from pipeline.gateway.forward import start_of
from pipeline.gateway.spec import TRITON_KEY_HEADER
from pipeline.gateway.upstream import BrokenOff, Response, Unreachable, Upstream, UpstreamRequest, request
from pipeline.gateway.upstream_errors import text_of_body, text_of_json
from pipeline.repository.names import FRONT_MODEL
from pipeline.request_ids import unique_id
from pipeline.triton_models.spans import TRACEPARENT
from pipeline.triton_models.tensors import Array, decode_utf8, text_tensor

_STOP = {"stop": np.asarray([[True]])}
# Output tokens may take any time.
_NO_LIMIT = math.inf
# Time limit for the answer of a server that hangs.
_READY_S = 2.0
# Time limit for the end of a stream after its last chunk, and for a request that stops another one.
_LEAVE_S = 2.0
# Status of a server whose model is not loaded, or that is shutting down; and of an invalid request.
_GONE, _REFUSED = (404, 503), (400, 501)


@dataclass(frozen=True, slots=True)
class TokenChunk:
    """New tokens of an output. finish_reason, statistics: in the last chunk only. log_probs: of the tokens except an
    end token, if requested. top: for each of these tokens the most probable ones, as (token id, log probability)."""

    token_ids: list[int]
    finish_reason: str | None = None
    statistics: dict[str, Any] | None = None
    log_probs: tuple[float, ...] = ()
    top: tuple[tuple[tuple[int, float], ...], ...] = ()

    def cut(self, length: int) -> TokenChunk:
        """The last chunk of an output that ends after `length` tokens of this one."""
        tokens, log_probs, top = self.token_ids[:length], self.log_probs[:length], self.top[:length]
        return replace(self, token_ids=tokens, finish_reason="end_token", log_probs=log_probs, top=top)


class TritonStream:
    """Client of one Triton server. cannot_be_reached: whether the last attempt to connect has failed."""

    def __init__(self, address: str, key: str = "") -> None:
        """address: host:port. key: Triton's access key; empty for none."""
        self.cannot_be_reached = False
        self._targets = (Upstream(address, {TRITON_KEY_HEADER: key} if key else {}),)
        self._leaving: set[asyncio.Task[None]] = set()

    async def is_ready(self) -> bool:
        """Whether all models of the server are ready."""
        with suppress(Unreachable, TimeoutError), anyio.fail_after(_READY_S):
            sent = UpstreamRequest(self._targets, "GET", "/v2/health/ready", b"", {}, _READY_S, "ready")
            async with self._response(sent) as response:
                return response.status == 200
        return False

    async def close(self) -> None:
        """Wait until all streams that were left have ended."""
        if self._leaving:
            await asyncio.wait(self._leaving)

    async def generate(
        self, tensors: Mapping[str, Array], request_id: str, trace: Mapping[str, str]
    ) -> AsyncGenerator[TokenChunk, None]:
        """Yield the chunks of the output as they arrive. Closing the generator early stops the request. trace: W3C
        trace headers, empty without tracing.

        Raises RequestError if the server refuses the request, BusyError if it is busy, EngineError if it has ended or
        is shutting down, RuntimeError for an internal error of the server."""
        if TRACEPARENT in trace:
            tensors = {**tensors, TRACEPARENT: text_tensor(trace[TRACEPARENT])}
        own_id = unique_id(request_id)
        sent = self._request(own_id, tensors, trace)
        has_ended = False
        stack = AsyncExitStack()
        try:
            response = await stack.enter_async_context(self._response(sent))
            if response.status != 200:
                raise _error(response.status, text_of_body(await start_of(response.chunks)))
            received = events(response.chunks)
            async for event in received:
                found = parsed(event)
                if not isinstance(found, dict) or "error" in found:
                    raise streamed_error(text_of_json(found))
                chunk = _chunk(found)
                if has_ended := chunk.finish_reason is not None:
                    # The end of the stream arrives later. To close before would be to cancel the request.
                    self._in_background(_read_all(received, stack.pop_all()))
                yield chunk
                if has_ended:
                    return
            raise EngineError("the stream of the server ended before the output did")
        except Unreachable as error:
            raise EngineError(f"the server has ended or is shutting down: {error}") from error
        except (asyncio.CancelledError, GeneratorExit):
            if not has_ended:  # Triton notices that a client has left only when it sends something
                self._in_background(self._stop(own_id))
            raise
        finally:
            await stack.aclose()

    def _request(self, own_id: str, tensors: Mapping[str, Array], headers: Mapping[str, str]) -> UpstreamRequest:
        """A request to the model. Raises RequestError for a text that is not UTF-8."""
        body = write_json({"id": own_id} | {name: _json_value(name, value) for name, value in tensors.items()})
        path = f"/v2/models/{FRONT_MODEL}/generate_stream"
        return UpstreamRequest(self._targets, "POST", path, body, headers, _NO_LIMIT, own_id)

    @asynccontextmanager
    async def _response(self, sent: UpstreamRequest) -> AsyncGenerator[Response, None]:
        """Send a request and yield the response. Raises Unreachable."""
        try:
            async with request(sent) as response:
                self.cannot_be_reached = False
                yield response
        except Unreachable as error:
            self.cannot_be_reached = not isinstance(error, BrokenOff)
            raise

    async def _stop(self, own_id: str) -> None:
        with suppress(Unreachable, TimeoutError), anyio.fail_after(_LEAVE_S):
            async with self._response(self._request(own_id, _STOP, {})) as response:
                async for _ in response.chunks:
                    pass

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        self._leaving.add(task := asyncio.create_task(work))
        task.add_done_callback(self._leaving.discard)


async def _read_all(received: AsyncGenerator[bytes, None], stack: AsyncExitStack) -> None:
    """Read the rest of a stream, and close its connection."""
    async with stack:
        with suppress(Unreachable, TimeoutError), anyio.fail_after(_LEAVE_S):
            async for _ in received:
                pass


def _error(status: int, text: str) -> Exception:
    """The exception for a response with an error."""
    error = streamed_error(text)
    if type(error) is not RequestError or status in _REFUSED:
        return error
    return EngineError(f"the server is not ready: {text}") if status in _GONE else RuntimeError(text)


def _json_value(name: str, tensor: Array) -> Any:
    """The values of a tensor as Triton's generate extension takes them: a single one, or a list. Raises
    RequestError."""
    values = tensor.reshape(-1).tolist()
    if tensor.dtype == np.object_:
        values = [decode_utf8(value, name) for value in values]
    return values[0] if len(values) == 1 else values


def _chunk(found: Json) -> TokenChunk:
    """Convert a response of Triton."""
    statistics = found.get("statistics")
    log_probs = _values(found, "output_log_probs")
    return TokenChunk(
        _values(found, "output_ids"),
        found.get("finish_reason"),
        None if statistics is None else json.loads(statistics),
        tuple(log_probs),
        _top(found, len(log_probs)),
    )


def _values(found: Json, name: str) -> list[Any]:
    """The values of an output, of which Triton sends a single one without a list."""
    values = found.get(name, [])
    return values if isinstance(values, list) else [values]


def _top(found: Json, num_tokens: int) -> tuple[tuple[tuple[int, float], ...], ...]:
    """The alternatives of each token."""
    pairs = [*zip(_values(found, "top_logprob_ids"), _values(found, "top_logprobs"), strict=True)]
    count = len(pairs) // max(1, num_tokens)
    return tuple(tuple(pairs[first : first + count]) for first in range(0, len(pairs), count or 1))
