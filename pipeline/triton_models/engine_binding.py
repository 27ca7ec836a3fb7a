"""Calls of one request to its target model, with retries while the model's queue is full."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from pipeline.config.schema import LookaheadConfig
from pipeline.engine.traits import TargetTraits
from pipeline.errors import BusyError
from pipeline.triton_models.call_costs import CallCosts
from pipeline.triton_models.call_planning import WITHOUT_DRAFTS
from pipeline.triton_models.stream_calls import StreamingCaller
from pipeline.triton_models.tensors import Array, Tensors

# Pauses before retries: each is twice as long as the one before, up to the longest.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 0.5
# Time for which a call is retried.
BUSY_PATIENCE_S = 30.0


class RetryBackoff:
    """Pauses between the retries of one call. has_begun: whether the request made a call before; the first call of a
    request is not retried."""

    def __init__(self, has_begun: bool) -> None:
        self._until = time.perf_counter() + BUSY_PATIENCE_S if has_begun else 0.0
        self._pause = _FIRST_PAUSE_S

    async def wait(self, error: BusyError) -> None:
        """Wait before the next retry. Raises `error` once `BUSY_PATIENCE_S` are over."""
        if time.perf_counter() + self._pause > self._until:
            raise error
        await asyncio.sleep(self._pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_S)


@dataclass(frozen=True, slots=True)
class EngineBinding:
    """Target model of a request and how to call it. lookahead: W, N and G to send, if any. costs: model of call times,
    to send only drafts that save time; None sends all."""

    target: StreamingCaller
    traits: TargetTraits
    strategy: str
    lookahead: LookaheadConfig | None = None
    costs: CallCosts | None = None

    @property
    def is_streamed(self) -> bool:
        """Whether one streamed call produces the whole output. A second call would restart the window and the
        grammar, draw different noise, and perhaps repeat the prefill."""
        return self.traits.limits is not None and self.strategy in WITHOUT_DRAFTS

    async def response(
        self, tensors: Mapping[str, Array], outputs: Sequence[str], call_id: str, has_begun: bool
    ) -> tuple[Tensors, float]:
        """Return the target's response and the start of the call (seconds of time.perf_counter). While the target's
        queue is full, a request that has begun retries; a new one raises BusyError."""
        backoff = RetryBackoff(has_begun)
        while True:
            started = time.perf_counter()
            try:
                return await self.target.call(tensors, outputs, call_id), started
            except BusyError as error:
                await backoff.wait(error)

    async def responses(
        self, tensors: Mapping[str, Array], call_id: str, has_begun: bool
    ) -> AsyncGenerator[Tensors, None]:
        """Yield the target's responses to one call. Retries as `response` does until the first response."""
        backoff, is_answered = RetryBackoff(has_begun), False
        while True:
            try:
                async with aclosing(self.target.stream(tensors, self.traits.outputs, call_id)) as responses:
                    async for response in responses:
                        is_answered = True
                        yield response
                return
            except BusyError as error:  # noqa: PERF203  # retries are rare
                if is_answered:
                    raise
                await backoff.wait(error)
