"""gRPC response streams that end early without a gRPC cancellation.

Triton up to 2.56 mishandles a call that is cancelled while its request ends: it keeps the model loaded, so that the
server does not shut down, or it uses freed memory (https://github.com/triton-inference-server/server/issues/8034). So
an abandoned request is stopped by its id, and its stream is read to the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable
from contextlib import suppress
from typing import Any

import grpc

# Time limit for a stopped request to end. After it the call is cancelled.
LEAVE_S = 2.0
_END = object()


class ResponseStream:
    """The responses of a call. Cancelling the reader does not cancel the call, unlike with gRPC's own iteration.

    call: async iterable with a method `cancel`. is_over: whether all responses have been read or the call has failed.
    """

    def __init__(self, call: Any) -> None:
        self._call = call
        self._responses = aiter(call)
        self._reading: asyncio.Future[Any] | None = None
        self.is_over = False

    def __aiter__(self) -> ResponseStream:
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

    async def leave(self, stop: Awaitable[object]) -> None:
        """Stop the request and read the remaining responses. stop: sends the request that stops it."""
        try:
            with suppress(grpc.aio.AioRpcError, asyncio.TimeoutError):
                await stop
                await asyncio.wait_for(read_all(self), LEAVE_S)
        finally:
            if not self.is_over:
                self._call.cancel()

    async def _next(self) -> Any:
        try:
            item = await anext(self._responses, _END)
        except BaseException:
            self.is_over = True
            raise
        self.is_over = item is _END
        return item


class Departures:
    """Background tasks, each of which leaves one stream."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, responses: ResponseStream, stop: Callable[[], Awaitable[object]]) -> None:
        """Start to leave a stream, unless it is over. stop: sends the request that stops it."""
        if not responses.is_over:
            self._tasks.add(task := asyncio.create_task(responses.leave(stop())))
            task.add_done_callback(self._tasks.discard)

    async def wait(self) -> None:
        """Wait until all tasks have ended. asyncio logs the errors of those that failed."""
        if self._tasks:
            await asyncio.wait(self._tasks)


async def read_all(responses: AsyncIterable[Any]) -> None:
    async for _ in responses:
        pass
