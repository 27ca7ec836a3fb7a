"""Calls from one Triton model to another of the same server, with streamed responses.

The calls use the server's gRPC interface, because Triton's Python backend corrupts its memory or deadlocks when several
threads of a model read streams of other models (docs/decisions/010).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import grpc
import tritonclient.grpc.aio as triton_grpc
from tritonclient.utils import np_to_triton_dtype

from pipeline.response_stream import Departures, ResponseStream
from pipeline.triton_models.model_calls import ModelCaller
from pipeline.triton_models.own_server import GrpcAddress, own_address
from pipeline.triton_models.tensors import Array, Tensors
from pipeline.triton_models.triton import CallResponses, refusal

_CHANNEL = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),  # the server is on this machine
)


class StreamingCaller(ModelCaller):
    """A `ModelCaller` whose calls can stream. find_address: returns the server's address. Not thread safe."""

    def __init__(
        self,
        model: str,
        stop: Mapping[str, Array],
        kept: CallResponses,
        find_address: Callable[[], GrpcAddress] = own_address,
    ) -> None:
        super().__init__(model, stop, kept)
        self._find_address = find_address
        self._address: GrpcAddress | None = None
        self._client: triton_grpc.InferenceServerClient | None = None
        self._departures = Departures()

    def connect(self) -> None:
        """Find the server's gRPC interface, which `stream` needs. Raises ServerError if there is no usable one."""
        self._address = self._find_address()

    async def stream(
        self, tensors: Mapping[str, Array], outputs: Sequence[str], request_id: str
    ) -> AsyncGenerator[Tensors, None]:
        """Yield the outputs of each response as it arrives. Closing the generator early stops the request. Raises
        as `ModelCaller.call` does."""
        assert self._address is not None, "call connect first"
        if self._client is None:  # a channel belongs to the event loop that opens it
            self._client = triton_grpc.InferenceServerClient(self._address.url, channel_args=_CHANNEL)
        request = {
            "model_name": self._model,
            "request_id": request_id,
            "inputs": [infer_input(name, value) for name, value in tensors.items()],
            "outputs": [triton_grpc.InferRequestedOutput(name) for name in outputs],
        }
        responses = ResponseStream(self._client.stream_infer(_only(request), headers=dict(self._address.headers)))
        failure = None
        try:
            async for result, error in responses:
                if error is not None:
                    failure = refusal(error.message())
                else:
                    yield {output.name: result.as_numpy(output.name) for output in result.get_response().outputs}
        except grpc.aio.AioRpcError as error:
            busy = error.code() is grpc.StatusCode.UNAVAILABLE
            failure = failure or refusal(error.details() or str(error.code()), busy)
        finally:
            self._departures.begin(responses, lambda: self.stop(outputs, request_id))
        if failure is not None:
            raise failure

    async def close(self) -> None:
        await self._departures.wait()
        if self._client is not None:
            await self._client.close()


async def _only(request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    yield request


def infer_input(name: str, value: Array) -> triton_grpc.InferInput:
    """The input of a gRPC request."""
    tensor = triton_grpc.InferInput(name, list(value.shape), np_to_triton_dtype(value.dtype))
    tensor.set_data_from_numpy(value)
    return tensor
