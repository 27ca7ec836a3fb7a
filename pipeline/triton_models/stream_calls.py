"""Calls from one Triton model to another of the same server, with streamed responses.

The calls use the server's gRPC interface, because Triton's Python backend corrupts its memory or deadlocks when several
threads of a model read streams of other models (docs/decisions/010).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial

import grpc

from pipeline.triton_grpc import TritonGrpc, infer_request, tensors_of
from pipeline.triton_models.model_calls import ModelCaller
from pipeline.triton_models.own_server import GrpcAddress, own_address
from pipeline.triton_models.python_backend import refusal
from pipeline.triton_models.tensors import Array, Tensors


class StreamingCaller(ModelCaller):
    """A `ModelCaller` whose calls can stream, after `connect`. Not thread safe."""

    _address: GrpcAddress | None = None
    _server: TritonGrpc | None = None

    def connect(self, find_address: Callable[[], GrpcAddress] = own_address) -> None:
        """Find the server's gRPC interface, which `stream` needs. Raises ServerError if there is no usable one."""
        self._address = find_address()

    async def stream(
        self, tensors: Mapping[str, Array], outputs: Sequence[str], request_id: str
    ) -> AsyncGenerator[Tensors, None]:
        """Yield the outputs of each response as it arrives. Closing the generator early stops the request. Raises
        as `ModelCaller.call` does."""
        assert self._address is not None, "call connect first"
        if self._server is None:  # it belongs to the event loop that creates it
            self._server = TritonGrpc(self._address.url, tuple(self._address.headers.items()))
        request = infer_request(self._model, request_id, tensors, outputs)
        stop_of = partial(infer_request, self._model, request_id, self._stop, outputs)
        failure = None
        try:
            async with aclosing(self._server.responses(request, stop_of)) as responses:
                async for response in responses:
                    if response.error_message:
                        failure = refusal(response.error_message)
                    else:
                        yield tensors_of(response.infer_response)
        except grpc.aio.AioRpcError as error:
            busy = error.code() is grpc.StatusCode.UNAVAILABLE
            failure = failure or refusal(error.details() or str(error.code()), busy)
        if failure is not None:
            raise failure

    async def close(self) -> None:
        if self._server is not None:
            await self._server.close()
