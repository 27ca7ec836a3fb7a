"""gRPC client of `lookahead_bls` with token ids as input and output."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from pipeline.errors import EngineError, RequestError, streamed_error
from pipeline.gateway.spec import TRITON_GRPC_KEY
from pipeline.repository.names import FRONT_MODEL
from pipeline.response_stream import LEAVE_S, Departures, ResponseStream, read_all
from pipeline.triton_models.spans import TRACEPARENT
from pipeline.triton_models.tensors import Array

# Unlimited message lengths, because of long prompts; reconnection within half a second after a restart.
_CHANNEL = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
]
_DTYPES = {
    np.dtype(np.int32): "INT32",
    np.dtype(np.uint64): "UINT64",
    np.dtype(np.float32): "FP32",
    np.dtype(np.bool_): "BOOL",
    np.dtype(np.object_): "BYTES",
}
_STOP = {"stop": np.asarray([[True]])}
# Time limit for the answer of a server that hangs.
_READY_S = 2.0
# Size of the length field in front of each text of a tensor.
_LENGTH_BYTES = 4


@dataclass(frozen=True, slots=True)
class TokenChunk:
    """New tokens of an output. finish_reason, statistics: in the last chunk only. log_probs: of the tokens except an
    end token, if requested. top: for each of these tokens the most probable ones, as (token id, log probability)."""

    token_ids: list[int]
    finish_reason: str | None = None
    statistics: dict[str, Any] | None = None
    log_probs: tuple[float, ...] = ()
    top: tuple[tuple[tuple[int, float], ...], ...] = ()


class TritonStream:
    """Client of one Triton server. Must be created in the event loop that uses it."""

    def __init__(self, url: str, key: str = "") -> None:
        """url: host:port. key: Triton's access key; empty for none."""
        self._channel = grpc.aio.insecure_channel(url, options=_CHANNEL)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._departures = Departures()
        self._metadata = ((TRITON_GRPC_KEY, key),) if key else ()

    @property
    def cannot_be_reached(self) -> bool:
        """Whether the last attempt to connect has failed."""
        return self._channel.get_state() is grpc.ChannelConnectivity.TRANSIENT_FAILURE

    async def is_ready(self) -> bool:
        """Whether all models of the server are ready."""
        try:
            answer = await self._stub.ServerReady(service_pb2.ServerReadyRequest(), timeout=_READY_S)
            return bool(answer.ready)
        except grpc.aio.AioRpcError:
            return False

    async def close(self) -> None:
        await self._departures.wait()
        await self._channel.close()

    async def _stop(self, request_id: str) -> None:
        """Send the request that stops the request with this id."""
        metadata = self._metadata
        await read_all(self._stub.ModelStreamInfer([_request(_STOP, request_id)], metadata=metadata, timeout=LEAVE_S))

    async def generate(
        self, tensors: Mapping[str, Array], request_id: str, trace: Mapping[str, str]
    ) -> AsyncGenerator[TokenChunk, None]:
        """Yield the chunks of the output as they arrive. Closing the generator early stops the request. trace: W3C
        trace headers, empty without tracing.

        Raises RequestError if the server refuses the request, BusyError if it is busy, EngineError if it has ended or
        is shutting down, RuntimeError for an internal error of the server."""
        if TRACEPARENT in trace:
            tensors = {**tensors, TRACEPARENT: np.asarray([[trace[TRACEPARENT].encode()]], np.object_)}
        metadata = (*self._metadata, *trace.items())
        call = self._stub.ModelStreamInfer([_request(tensors, request_id)], metadata=metadata)
        responses, last, failure = ResponseStream(call), None, None
        try:
            async for response in responses:
                if response.error_message:
                    failure = streamed_error(response.error_message)
                    continue
                chunk = _chunk(response.infer_response)
                # The last chunk is yielded, and an error raised, only after the end of the stream.
                if chunk.finish_reason is None:
                    yield chunk
                else:
                    last = chunk
        except grpc.aio.AioRpcError as error:
            failure = failure or _call_error(error)
        finally:
            self._departures.begin(responses, lambda: self._stop(request_id))
        if failure is not None:
            raise failure
        if last is None:
            raise EngineError("the stream of the server ended before the output did")
        yield last


def _request(tensors: Mapping[str, Array], request_id: str) -> Any:
    request = service_pb2.ModelInferRequest(model_name=FRONT_MODEL, id=request_id)
    for name, value in tensors.items():
        request.inputs.add(name=name, datatype=_DTYPES[value.dtype], shape=value.shape)
        if value.dtype == np.object_:
            content = b"".join(len(item).to_bytes(_LENGTH_BYTES, "little") + item for item in value.flat)
        else:
            content = value.tobytes()
        request.raw_input_contents.append(content)
    return request


def _chunk(response: Any) -> TokenChunk:
    """Convert a ModelInferResponse. Its tensors of text have one element."""
    found = {output.name: raw for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)}
    reason, statistics = found.get("finish_reason"), found.get("statistics")
    token_ids = np.frombuffer(found.get("output_ids", b""), np.int32).tolist()
    log_probs = np.frombuffer(found.get("output_log_probs", b""), np.float32).tolist()
    top_ids = np.frombuffer(found.get("top_logprob_ids", b""), np.int32)
    top = np.frombuffer(found.get("top_logprobs", b""), np.float32)
    return TokenChunk(
        token_ids,
        None if reason is None else reason[_LENGTH_BYTES:].decode(),
        None if statistics is None else json.loads(statistics[_LENGTH_BYTES:]),
        tuple(log_probs),
        _top(top_ids, top, len(log_probs)),
    )


def _top(ids: Array, values: Array, num_tokens: int) -> tuple[tuple[tuple[int, float], ...], ...]:
    """Group the alternatives by token. ids, values: [num_tokens * alternatives]."""
    if not ids.size:
        return ()
    rows = zip(ids.reshape(num_tokens, -1).tolist(), values.reshape(num_tokens, -1).tolist(), strict=True)
    return tuple(tuple(zip(*row, strict=True)) for row in rows)


def _call_error(error: grpc.aio.AioRpcError) -> Exception:
    """Error of a failed call: EngineError, RequestError or RuntimeError."""
    text = error.details() or ""
    if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        return EngineError(f"the server is gone or going: {text}")
    if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
        return RequestError(text)
    return RuntimeError(text)
