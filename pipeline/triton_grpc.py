"""Calls to a Triton server over gRPC. Streamed ones end early without a gRPC cancellation.

Triton up to 2.56 mishandles a call that is cancelled while its request ends: it keeps the model loaded, so that the
server does not shut down, or it uses freed memory (https://github.com/triton-inference-server/server/issues/8034). So
an abandoned request is stopped by its id, and its stream is read to the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc
from tritonclient.utils import deserialize_bytes_tensor, np_to_triton_dtype, triton_to_np_dtype

# Options of a channel: no proxy, messages of any length.
CHANNEL = [
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
]
# Options of a channel that outlives its server: reconnection within half a second after a restart. gRPC's "minimum" is
# the time limit of an attempt to connect: a busy machine needs seconds, and a server that hangs never answers.
LASTING_CHANNEL = [
    *CHANNEL,
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.min_reconnect_backoff_ms", 5000),
]
# Time limit for a stopped request to end. After it the call is cancelled.
LEAVE_S = 2.0
_LENGTH_BYTES = 4  # of the length in front of each text of a tensor
_END = object()
# Triton's method for streams. It takes any number of requests; ours have one.
_METHOD = "/inference.GRPCInferenceService/ModelStreamInfer"
Metadata = Sequence[tuple[str, str]]


class TritonGrpc:
    """gRPC access to a Triton server. Create it in the event loop that uses it; it connects at its first call. stub:
    of all methods, for calls without streams. metadata: to send with every call."""

    def __init__(self, address: str, metadata: Metadata = ()) -> None:
        """address: host:port."""
        self.channel = grpc.aio.insecure_channel(address, options=LASTING_CHANNEL)
        self.stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(self.channel)
        self.metadata = metadata
        # A call with a stream of requests would send the headers, wait, and then send the request.
        self._infer = self.channel.unary_stream(
            _METHOD,
            request_serializer=pb.ModelInferRequest.SerializeToString,
            response_deserializer=pb.ModelStreamInferResponse.FromString,
        )
        self._leaving: set[asyncio.Task[None]] = set()

    async def responses(
        self,
        request: Any,
        stop_of: Callable[[], Any] = lambda: None,
        metadata: Metadata = (),
    ) -> AsyncGenerator[Any, None]:
        """Yield the responses to a request. Closing the generator early stops the request, and reads the other
        responses in the background. stop_of: returns the request that stops it; None if there is none. There is no
        deadline, which would cancel the call. Raises grpc.aio.AioRpcError."""
        responses = _Responses(self._infer(request, metadata=(*self.metadata, *metadata)))
        try:
            async for response in responses:
                yield response
        finally:
            if not responses.is_over:
                self._in_background(responses.leave(self._send(stop_of())))

    def stop(self, stop: Any) -> None:
        """Send a request that stops another one, in the background."""

        async def send() -> None:
            with suppress(grpc.aio.AioRpcError):  # the server may have ended
                await self._send(stop)

        self._in_background(send())

    async def close(self) -> None:
        """Wait until all abandoned requests have ended, and disconnect."""
        if self._leaving:
            await asyncio.wait(self._leaving)
        await self.channel.close()

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        self._leaving.add(task := asyncio.create_task(work))
        task.add_done_callback(self._leaving.discard)

    async def _send(self, stop: Any) -> None:
        if stop is not None:
            async for _ in self._infer(stop, metadata=self.metadata, timeout=LEAVE_S):
                pass


class _Responses:
    """The responses of a call. Cancelling the reader does not cancel the call, unlike with gRPC's own iteration.
    is_over: whether all responses have been read or the call has failed."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._responses = aiter(call)
        self._reading: asyncio.Future[Any] | None = None
        self.is_over = False

    def __aiter__(self) -> _Responses:
        return self

    async def __anext__(self) -> Any:
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._next())
            # asyncio would log an error that no reader takes because it has left.
            self._reading.add_done_callback(lambda done: done.cancelled() or done.exception())
        item = await asyncio.shield(self._reading)
        self._reading = None
        if item is _END:
            raise StopAsyncIteration
        return item

    async def leave(self, stop: Any) -> None:
        """Stop the request and read the remaining responses. stop: awaitable that stops it. Its time limit may be over
        although the request ends, if this process was suspended."""
        try:
            with suppress(grpc.aio.AioRpcError):
                await stop
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.read_all(), LEAVE_S)
        finally:
            if not self.is_over:
                self._call.cancel()

    async def read_all(self) -> None:
        """Read the remaining responses."""
        with suppress(grpc.aio.AioRpcError):
            async for _ in self:
                pass

    async def _next(self) -> Any:
        try:
            item = await anext(self._responses, _END)
        except BaseException:
            self.is_over = True
            raise
        self.is_over = item is _END
        return item


def infer_request(model: str, request_id: str, tensors: Mapping[str, Any], outputs: Sequence[str] = ()) -> Any:
    """A ModelInferRequest. tensors: numpy arrays by name, texts as bytes. outputs: names of the requested outputs; all
    if empty."""
    request = pb.ModelInferRequest(model_name=model, id=request_id)
    for name, value in tensors.items():
        request.inputs.add(name=name, datatype=np_to_triton_dtype(value.dtype), shape=value.shape)
        content = value.tobytes()
        if value.dtype == np.object_:
            content = b"".join(len(item).to_bytes(_LENGTH_BYTES, "little") + item for item in value.flat)
        request.raw_input_contents.append(content)
    for name in outputs:
        request.outputs.add(name=name)
    return request


def tensors_of(response: Any) -> dict[str, Any]:
    """Output tensors of a ModelInferResponse as numpy arrays."""
    found = {}
    for output, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        if output.datatype == "BYTES":
            values = deserialize_bytes_tensor(raw)
        else:
            values = np.frombuffer(raw, triton_to_np_dtype(output.datatype))
        found[output.name] = values.reshape(output.shape)
    return found
