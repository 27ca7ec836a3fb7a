"""A client's gRPC stream: its tasks, the responses that wait for the client, and its end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pipeline.gateway.refusal import Refusal
from pipeline.gateway.upstream_errors import logger

# Responses that wait for a client to read them. While there are as many, nothing further is read for that client.
_MAX_ANSWERS = 64
# A stream without a request for so long is ended.
_IDLE_S = 1800.0


@dataclass(eq=False, slots=True)
class Stream:
    """A client's stream. tasks: see `run`. num_run: number of tasks so far. answers: responses and refusals for the
    client; None ends the stream. is_closed: whether later answers are dropped."""

    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    num_run: int = 0
    answers: asyncio.Queue[Any] = field(default_factory=partial(asyncio.Queue, _MAX_ANSWERS))
    is_closed: bool = False

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task of the stream. If it fails, the stream ends with an error."""

        def check(task: asyncio.Task[None]) -> None:
            self.tasks.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                logger.error("a gRPC stream failed", exc_info=error)
                self.close(Refusal(500, "the gateway failed on this stream; its log has the reason"))

        self.num_run += 1
        self.tasks.add(task := asyncio.ensure_future(work))
        task.add_done_callback(check)
        return task

    async def put(self, answer: Any) -> None:
        """Add an answer as soon as there is room for it."""
        if not self.is_closed:
            await self.answers.put(answer)

    def close(self, refusal: Refusal | None = None) -> None:
        """End the stream without the answers that the client has not read. Tasks that wait for room continue."""
        self.is_closed = True
        while not self.answers.empty():
            self.answers.get_nowait()
            self.answers.task_done()
        self.answers.put_nowait(refusal)

    @property
    def is_idle(self) -> bool:
        """Whether no request runs: the reader and `expire` are the only tasks."""
        return len(self.tasks) <= 2

    async def expire(self) -> None:
        """End the stream when it has had no request for _IDLE_S. Run it beside the stream's reader only."""
        num_seen = 0
        while self.num_run > num_seen or not self.is_idle:
            num_seen = self.num_run
            await asyncio.sleep(_IDLE_S)
        self.close(Refusal(504, f"the stream had no request for {_IDLE_S:g} s; open another one"))

    async def end(self) -> None:
        """Cancel all tasks and wait for their end."""
        self.close()
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
