"""gRPC client of `lookahead_bls` with token ids as input and output."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2

from pipeline.errors import EngineError, RequestError, streamed_error
from pipeline.gateway.spec import TRITON_GRPC_KEY
from pipeline.repository.names import FRONT_MODEL
from pipeline.request_ids import unique_id
from pipeline.triton_grpc import TritonGrpc, infer_request, tensors_of
from pipeline.triton_models.spans import TRACEPARENT
from pipeline.triton_models.tensors import Array, text_tensor

_STOP = {"stop": np.asarray([[True]])}
# Output of the last response only.
_REASON = "finish_reason"
# Time limit for the answer of a server that hangs.
_READY_S = 2.0


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
    """Client of one Triton server. Must be created in the event loop that uses it."""

    def __init__(self, url: str, key: str = "") -> None:
        """url: host:port. key: Triton's access key; empty for none."""
        self._triton = TritonGrpc(url, ((TRITON_GRPC_KEY, key),) if key else ())

    @property
    def cannot_be_reached(self) -> bool:
        """Whether the last attempt to connect has failed."""
        return self._triton.channel.get_state() is grpc.ChannelConnectivity.TRANSIENT_FAILURE

    async def is_ready(self) -> bool:
        """Whether all models of the server are ready."""
        try:
            answer = await self._triton.stub.ServerReady(service_pb2.ServerReadyRequest(), timeout=_READY_S)
            return bool(answer.ready)
        except grpc.aio.AioRpcError:
            return False

    async def close(self) -> None:
        await self._triton.close()

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
        request = infer_request(FRONT_MODEL, own_id, tensors)
        calls = self._triton.responses(
            request, lambda: infer_request(FRONT_MODEL, own_id, _STOP), tuple(trace.items()), _is_last
        )
        failure: Exception | None = None
        try:
            async with aclosing(calls) as responses:
                async for response in responses:
                    if response.error_message:
                        failure = streamed_error(response.error_message)  # raised after the end of the stream
                        continue
                    chunk = _chunk(tensors_of(response.infer_response))
                    yield chunk
                    if chunk.finish_reason is not None:
                        return
        except grpc.aio.AioRpcError as error:
            failure = failure or _call_error(error)
        raise failure or EngineError("the stream of the server ended before the output did")


def _is_last(response: Any) -> bool:
    """Whether the request of a response has ended. The end of its stream arrives later."""
    return any(output.name == _REASON for output in response.infer_response.outputs)


def _chunk(found: Mapping[str, Array]) -> TokenChunk:
    """Convert the tensors of a response. Those of text have one element."""
    reason, statistics = found.get(_REASON), found.get("statistics")
    log_probs = _values(found, "output_log_probs")
    return TokenChunk(
        _values(found, "output_ids"),
        None if reason is None else reason.item().decode(),
        None if statistics is None else json.loads(statistics.item()),
        tuple(log_probs),
        _top(found, len(log_probs)),
    )


def _values(found: Mapping[str, Array], name: str) -> list[Any]:
    return found[name].reshape(-1).tolist() if name in found else []


def _top(found: Mapping[str, Array], num_tokens: int) -> tuple[tuple[tuple[int, float], ...], ...]:
    """The alternatives of each token, from tensors of [num_tokens, alternatives]."""
    if "top_logprob_ids" not in found or not found["top_logprob_ids"].size:
        return ()
    rows = (found[name].reshape(num_tokens, -1).tolist() for name in ("top_logprob_ids", "top_logprobs"))
    return tuple(tuple(zip(*row, strict=True)) for row in zip(*rows, strict=True))


def _call_error(error: grpc.aio.AioRpcError) -> Exception:
    """Error of a failed call: EngineError, RequestError or RuntimeError."""
    text = error.details() or ""
    if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        return EngineError(f"the server has ended or is shutting down: {text}")
    if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
        return RequestError(text)
    return RuntimeError(text)
