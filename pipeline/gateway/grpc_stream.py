"""One client's stream of requests over gRPC, and the calls to the servers behind that answer it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import grpc

from pipeline.gateway.deployment import Deployment

_CLOSE_S = 2.0


@dataclass(slots=True)
class Call:
    """The part of a client's stream that one server answers. open: its requests with the times when they began, oldest
    first; each is held until it is closed. is_done: no further request goes to it."""

    deployment: Deployment
    rpc: Any
    open: deque[tuple[float, ExitStack]] = field(default_factory=deque)
    is_done: bool = False

    def close_oldest(self) -> None:
        if self.open:
            self.open.popleft()[1].close()

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
        if call.open:
            call.rpc.cancel()
        else:
            await call.finish()
    if stream.receiving:
        await asyncio.wait(stream.receiving, timeout=_CLOSE_S)
    for task in stream.receiving:
        task.cancel()
    await asyncio.gather(*tasks, *stream.receiving, return_exceptions=True)
    for call in stream.calls:
        while call.open:
            call.close_oldest()
