"""One request to `lookahead_bls` over gRPC, tokens in and tokens out, in an event loop."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import InferInput
from tritonclient.grpc.aio import InferenceServerClient

from pipeline.errors import BusyError, EngineError, RequestError
from pipeline.gateway.spec import TRITON_GRPC_KEY
from pipeline.repository.names import FRONT_MODEL
from pipeline.triton_models.spans import TRACEPARENT
from pipeline.triton_models.tensors import Array

# A server that comes back is found again within half a second; messages are as long as a prompt.
_CHANNEL = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
]
# Asks Triton for the code of an error, not its text alone.
_HEADERS = {"triton_grpc_error": "true"}
_DTYPES = {
    np.dtype(np.int32): "INT32",
    np.dtype(np.uint64): "UINT64",
    np.dtype(np.float32): "FP32",
    np.dtype(np.bool_): "BOOL",
    np.dtype(np.object_): "BYTES",
}
_BUSY = "busy"
# Words of Triton for a model whose process died.
_DEAD_MODEL = ("Stub process", "is not healthy")


@dataclass(frozen=True, slots=True)
class TokenChunk:
    """New tokens of an output. finish_reason and statistics come with the last chunk. log_probs: of the tokens, if
    asked for; an end token has none. top: for each of them the most probable tokens with their log probabilities."""

    token_ids: list[int]
    finish_reason: str | None = None
    statistics: dict[str, Any] | None = None
    log_probs: tuple[float, ...] = ()
    top: tuple[tuple[tuple[int, float], ...], ...] = ()


class TritonStream:
    """Client of one Triton server. Made inside the event loop that uses it."""

    def __init__(self, url: str, key: str = "") -> None:
        """key: what Triton asks for; empty for none."""
        self._client = InferenceServerClient(url, channel_args=_CHANNEL)
        self._headers = _HEADERS | ({TRITON_GRPC_KEY: key} if key else {})

    async def is_ready(self) -> bool:
        """Whether all models of the server answer."""
        try:
            return bool(await self._client.is_server_ready())
        except Exception:  # the client wraps each failure in another class
            return False

    async def close(self) -> None:
        await self._client.close()

    async def generate(
        self, tensors: Mapping[str, Array], request_id: str, trace: Mapping[str, str]
    ) -> AsyncGenerator[TokenChunk, None]:
        """Chunks as they come. Leaving the iteration early cancels the request. trace: headers of its trace, empty if
        nothing records it.

        Raises RequestError for a request that the server refuses, BusyError for one that it cannot take now, and
        EngineError if the server is gone or going."""
        if TRACEPARENT in trace:
            tensors = {**tensors, TRACEPARENT: np.asarray([[trace[TRACEPARENT].encode()]], np.object_)}
        call = self._client.stream_infer(_one(tensors, request_id), headers=self._headers | dict(trace))
        finished, last = False, None
        try:
            async for result, error in call:
                if error is not None:
                    raise _error(str(error), None)
                chunk = _chunk(result)
                # The call is read to its end before the last chunk goes out: a call that is cancelled when its request
                # has been answered keeps the server from stopping.
                if chunk.finish_reason is None:
                    yield chunk
                else:
                    last = chunk
            finished = True
        except grpc.aio.AioRpcError as error:
            finished = True
            raise _error(error.details() or "", error.code()) from error
        finally:
            if not finished:
                call.cancel()
        if last is None:
            raise EngineError("the stream of the server ended before the output did")
        yield last


async def _one(tensors: Mapping[str, Array], request_id: str) -> AsyncIterator[dict[str, Any]]:
    yield {"model_name": FRONT_MODEL, "inputs": _inputs(tensors), "request_id": request_id}


def _inputs(tensors: Mapping[str, Array]) -> list[InferInput]:
    inputs = []
    for name, value in tensors.items():
        tensor = InferInput(name, list(value.shape), _DTYPES[value.dtype])
        tensor.set_data_from_numpy(value)
        inputs.append(tensor)
    return inputs


def _chunk(result: Any) -> TokenChunk:
    ids = result.as_numpy("output_ids")
    reason, statistics = result.as_numpy("finish_reason"), result.as_numpy("statistics")
    return TokenChunk(
        [] if ids is None else ids.reshape(-1).tolist(),
        None if reason is None else reason.reshape(-1)[0].decode(),
        None if statistics is None else json.loads(statistics.reshape(-1)[0]),
        () if (values := result.as_numpy("output_log_probs")) is None else tuple(values.reshape(-1).tolist()),
        _top(result.as_numpy("top_logprob_ids"), result.as_numpy("top_logprobs")),
    )


def _top(ids: Array | None, values: Array | None) -> tuple[tuple[tuple[int, float], ...], ...]:
    """ids, values: [1, tokens, alternatives]"""
    if ids is None or values is None or not ids.size:
        return ()
    return tuple(tuple(zip(*row, strict=True)) for row in zip(ids[0].tolist(), values[0].tolist(), strict=True))


def _error(text: str, code: grpc.StatusCode | None) -> Exception:
    """The error that a failed call stands for."""
    if text.startswith(_BUSY):
        return BusyError(text)
    gone = code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED) or any(word in text for word in _DEAD_MODEL)
    if gone:
        return EngineError(f"the server is gone or going: {text}")
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        return RequestError(text)
    return RuntimeError(text)
