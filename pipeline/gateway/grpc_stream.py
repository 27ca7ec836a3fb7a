"""State of a client's gRPC stream, and its calls to the upstream servers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as pb

from pipeline.gateway.deployment import Deployment, TritonGrpc
from pipeline.gateway.errors import logger
from pipeline.gateway.refusal import Refusal

# Input of a request that stops the requests with the same id.
STOP = "stop"
# Responses that wait for a client to read them. While there are as many, nothing further is read for that client.
_MAX_ANSWERS = 64
# Time limit for the requests of a disconnected client to end.
_CLOSE_S = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class OpenRequest:
    """A request without its final response. request_id: id on the upstream server. began_s: start, on the event loop's
    clock. held: closed at its end. stop: the request that stops it; None if its model has no stop requests."""

    request_id: str
    began_s: float
    held: ExitStack
    stop: pb.ModelInferRequest | None


@dataclass(slots=True)
class Call:
    """A stream to one upstream server, for a part of a client's requests. open: requests without a final response,
    oldest first. receiving: task that reads its responses. is_done: whether it takes no further requests."""

    deployment: Deployment
    triton: TritonGrpc
    rpc: Any
    open: deque[OpenRequest] = field(default_factory=deque)
    receiving: asyncio.Task[None] | None = None
    is_done: bool = False

    def close(self, request_id: str) -> None:
        """Close the oldest request with this id, or the oldest of all if none has this id."""
        if self.open:
            ended = next((request for request in self.open if request.request_id == request_id), self.open[0])
            self.open.remove(ended)
            ended.held.close()

    def close_all(self) -> None:
        while self.open:
            self.open.popleft().held.close()

    async def stop(self) -> None:
        """Stop the open requests, instead of cancelling the stream: Triton up to version 2.56 keeps a model loaded, or
        crashes, if a stream is cancelled while a request ends
        (https://github.com/triton-inference-server/server/issues/8034)."""
        stops = [request.stop for request in self.open if request.stop is not None]
        if stops:
            answers = self.triton.stub.ModelStreamInfer(stops, metadata=self.triton.metadata, timeout=_CLOSE_S)
            with suppress(grpc.aio.AioRpcError):
                async for _ in answers:
                    pass

    async def finish(self) -> None:
        """Close the sending side. Triton keeps a model loaded if a stream without open requests is cancelled."""
        self.is_done = True
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the receiving task handles the end
            await self.rpc.done_writing()


@dataclass(slots=True)
class Stream:
    """A client's stream of requests. calls: open calls to upstream servers, the current one last. tasks: see `run`.
    answers: responses and refusals for the client; None ends the stream. is_sent: whether the client has closed its
    sending side. is_closed: whether later answers are dropped."""

    calls: list[Call] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    answers: asyncio.Queue[Any] = field(default_factory=partial(asyncio.Queue, _MAX_ANSWERS))
    is_sent: bool = False
    is_closed: bool = False

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task of the stream. If it fails, the stream ends with an error."""

        def check(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                logger.error("a gRPC stream failed", exc_info=error)
                self.close(Refusal(500, "the gateway failed on this stream; its log says why"))

        self.tasks.append(task := asyncio.ensure_future(work))
        task.add_done_callback(check)
        return task

    async def put(self, answer: Any) -> None:
        """Add an answer as soon as there is room for it."""
        if not self.is_closed:
            await self.answers.put(answer)

    def close(self, refusal: Refusal | None = None) -> None:
        """End the stream without the answers that the client has not read. Requests of a client that does not read then
        run to their end, because tasks that wait for room continue."""
        self.is_closed = True
        while not self.answers.empty():
            self.answers.get_nowait()
        self.answers.put_nowait(refusal)


async def end_stream(stream: Stream) -> None:
    """End a stream: stop its requests, close its calls and cancel its tasks."""
    receiving = [call.receiving for call in stream.calls if call.receiving is not None]
    for task in stream.tasks:
        if task not in receiving:
            task.cancel()
    for call in list(stream.calls):
        await call.stop()
        await call.finish()
    if receiving:
        await asyncio.wait(receiving, timeout=_CLOSE_S)
    for task in receiving:
        task.cancel()
    await asyncio.gather(*stream.tasks, return_exceptions=True)
    for call in stream.calls:
        call.close_all()


def stop_request(request: pb.ModelInferRequest) -> pb.ModelInferRequest:
    """The request that stops `request`, which must have a unique id."""
    stop = pb.ModelInferRequest(model_name=request.model_name, id=request.id, raw_input_contents=[b"\x01"])
    stop.inputs.add(name=STOP, datatype="BOOL", shape=[1, 1])
    return stop
