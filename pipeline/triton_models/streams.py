"""Streams of gRPC responses that are left without a cancellation.

Triton up to 2.56 loses track of a call that is cancelled while its request ends: it keeps the model, so the server does
not end by itself, or uses freed memory (https://github.com/triton-inference-server/server/issues/8034). So a request
that nobody waits for is stopped by its id, and its stream is read to the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable
from contextlib import suppress
from typing import Any

import grpc

# Time limit for a stopped request to end; then its call is cancelled.
LEAVE_S = 2.0
_END = object()


class ResponseStream:
    """The responses of a call. Cancelling its reader does not cancel the call, as it does with gRPC's own iteration.

    call: iterable, with a method `cancel`. is_over: all of it has been read, or it has failed."""

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
        item = await asyncio.shield(self._reading)
        self._reading = None
        if item is _END:
            raise StopAsyncIteration
        return item

    async def leave(self, stop: Awaitable[object]) -> None:
        """Stop the request and read the rest. stop: sends the request that stops it."""
        with suppress(grpc.aio.AioRpcError, asyncio.TimeoutError):
            await stop
            await asyncio.wait_for(read_all(self), LEAVE_S)
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
    """Streams that are being left, each in a task of its own."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, responses: ResponseStream, stop: Callable[[], Awaitable[object]]) -> None:
        """Leave a stream, unless all of it has been read. stop: sends the request that stops it."""
        if not responses.is_over:
            self._tasks.add(task := asyncio.create_task(responses.leave(stop())))
            task.add_done_callback(self._tasks.discard)

    async def wait(self) -> None:
        await asyncio.gather(*self._tasks)


async def read_all(responses: AsyncIterable[Any]) -> None:
    async for _ in responses:
        pass
