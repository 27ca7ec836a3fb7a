"""A stand-in for Triton's streams, which sends what a test gives it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.patience import PATIENCE_S

_DTYPES = {np.dtype(np.int32): "INT32", np.dtype(np.float32): "FP32"}


def response(**values: Any) -> service_pb2.ModelStreamInferResponse:
    """values: tensors by name, or the text of a single one."""
    made = service_pb2.ModelInferResponse()
    for name, value in values.items():
        shape, raw = (value.shape, value.tobytes()) if isinstance(value, np.ndarray) else ((1,), value.encode())
        made.outputs.add(name=name, shape=shape, datatype="BYTES" if isinstance(value, str) else _DTYPES[value.dtype])
        made.raw_output_contents.append(raw if isinstance(value, np.ndarray) else len(raw).to_bytes(4, "little") + raw)
    return service_pb2.ModelStreamInferResponse(infer_response=made)


class Triton(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Sends the given responses. A status code ends the stream; None waits until the request is stopped or cancelled.

    num_requests: without those that stop others. stopped: ids of requests that were to be stopped. deadline_s: what the
    stream had left. num_sent: responses. was_read, was_cancelled: how it ended. obeys: whether it stops requests.
    on_stop: called when a request is to be stopped. is_ready: its readiness."""

    def __init__(self, *answers: Any) -> None:
        self.answers = answers
        self.deadline_s: float | None = None
        self.requests: list[Any] = []
        self.metadata: dict[str, str] = {}
        self.stopped: list[str] = []
        self.num_sent = self.num_requests = 0
        self.was_read, self.was_cancelled = asyncio.Event(), asyncio.Event()
        self.obeys = self.is_ready = True
        self.on_stop: Callable[[], None] = lambda: None
        self._go_on = asyncio.Event()

    def stop(self, request_id: str) -> None:
        self.stopped.append(request_id)
        self.on_stop()
        if self.obeys:
            self._go_on.set()

    async def ServerReady(self, request: Any, context: Any) -> Any:
        return service_pb2.ServerReadyResponse(ready=self.is_ready)

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        self.num_sent += 1
        return self.answers[0].infer_response

    async def ModelStreamInfer(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        received = [request async for request in requests]
        if any(tensor.name == "stop" for tensor in received[0].inputs):
            self.stop(received[0].id)
            return
        self.num_requests += len(received)
        self.metadata, self.requests = dict(context.invocation_metadata()), received
        self.deadline_s = context.time_remaining()
        for answer in self.answers:
            if isinstance(answer, grpc.StatusCode):
                await context.abort(answer, "the reason")
            if answer is None:
                try:
                    await asyncio.wait_for(self._go_on.wait(), PATIENCE_S)
                except asyncio.CancelledError:
                    self.was_cancelled.set()
                    raise
            else:
                answer.infer_response.id = received[0].id
                yield answer
                self.num_sent += 1
        self.was_read.set()


def failed(message: str) -> service_pb2.ModelStreamInferResponse:
    return service_pb2.ModelStreamInferResponse(error_message=message)


@asynccontextmanager
async def serving(*answers: Any) -> AsyncGenerator[tuple[Triton, str], None]:
    """The stand-in and its address, for the length of a block."""
    triton, server = Triton(*answers), grpc.aio.server()
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(triton, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield triton, f"127.0.0.1:{port}"
    finally:
        await server.stop(0)
