"""One client's stream of requests over gRPC, and the calls to the servers behind that answer it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as pb

from pipeline.gateway.deployment import Deployment

# Input of a request that ends those with the same id.
STOP = "stop"
# Time limit for requests to end whose client has left.
_CLOSE_S = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class OpenRequest:
    """A request that is not answered yet. request_id: as the server has it. began_s: on the event loop's clock. held:
    what is closed with it. stop: the request that stops it, None if its model takes none."""

    request_id: str
    began_s: float
    held: ExitStack
    stop: pb.ModelInferRequest | None


@dataclass(slots=True)
class Call:
    """The part of a client's stream that one server answers. open: its requests, oldest first. is_done: no further
    request goes to it."""

    deployment: Deployment
    rpc: Any
    open: deque[OpenRequest] = field(default_factory=deque)
    is_done: bool = False

    def close(self, request_id: str) -> None:
        """A request with this id has ended: the oldest one, or the oldest of all if none has it."""
        if self.open:
            ended = next((request for request in self.open if request.request_id == request_id), self.open[0])
            self.open.remove(ended)
            ended.held.close()

    def close_all(self) -> None:
        while self.open:
            self.open.popleft().held.close()

    async def stop(self) -> None:
        """Stop its requests. Triton up to version 2.56 holds on to a model, or crashes, when a stream is cancelled
        while a request ends (https://github.com/triton-inference-server/server/issues/8034)."""
        stops = [request.stop for request in self.open if request.stop is not None]
        if stops:
            answers = self.deployment.stub.ModelStreamInfer(stops, metadata=self.deployment.metadata, timeout=_CLOSE_S)
            with suppress(grpc.aio.AioRpcError):
                async for _ in answers:
                    pass

    async def finish(self) -> None:
        """Send nothing more. Triton holds on to a model where a stream without open requests is cancelled."""
        self.is_done = True
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # its end is read by who receives
            await self.rpc.done_writing()


@dataclass(slots=True)
class Stream:
    """One client's stream of requests. calls: to the servers that answer it and have not ended, the current one last.
    is_sent: the client sends no more."""

    calls: list[Call] = field(default_factory=list)
    receiving: list[asyncio.Task[None]] = field(default_factory=list)
    answers: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)
    is_sent: bool = False


async def end_stream(stream: Stream, tasks: Sequence[asyncio.Future[None]]) -> None:
    """End all of a stream. tasks: those that serve it, but for the receiving ones."""
    for task in tasks:
        task.cancel()
    for call in list(stream.calls):
        await call.stop()
        await call.finish()
    if stream.receiving:
        await asyncio.wait(stream.receiving, timeout=_CLOSE_S)
    for task in stream.receiving:
        task.cancel()
    await asyncio.gather(*tasks, *stream.receiving, return_exceptions=True)
    for call in stream.calls:
        call.close_all()


def stop_request(request: pb.ModelInferRequest) -> pb.ModelInferRequest:
    """The request that stops one with a unique id."""
    stop = pb.ModelInferRequest(model_name=request.model_name, id=request.id, raw_input_contents=[b"\x01"])
    stop.inputs.add(name=STOP, datatype="BOOL", shape=[1, 1])
    return stop
