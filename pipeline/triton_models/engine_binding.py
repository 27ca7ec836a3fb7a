"""The engine that one request is sent to, and calls to it that outlast a full queue."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from pipeline.config.schema import LookaheadConfig
from pipeline.engine.traits import TargetTraits
from pipeline.errors import BusyError
from pipeline.triton_models.call_costs import CallCosts
from pipeline.triton_models.steps import PIECE_TOKENS
from pipeline.triton_models.tensors import Array, Tensors

# The first pause before a retry; each pause is twice as long as the one before.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 0.5
BUSY_PATIENCE_S = 30.0


class Target(Protocol):
    """A model such as `tensorrt_llm`, called from the BLS model. `call` and `stream` raise RequestError with the
    target's words if it refuses the request, BusyError if it is too busy."""

    def connect(self) -> None:
        """Get ready for `stream`. Raises ServerError if the server has no interface for it."""

    async def call(self, tensors: Mapping[str, Array], outputs: Sequence[str], request_id: str) -> Tensors:
        """The response to one request; cancelling it cancels the request."""

    def stream(
        self, tensors: Mapping[str, Array], outputs: Sequence[str], request_id: str
    ) -> AsyncGenerator[Tensors, None]:
        """The responses to one request, each as it comes; closing the generator early cancels the request."""


class Patience:
    """Pauses of one call. has_begun: whether the request has had an answer; one that has not is refused at once."""

    def __init__(self, has_begun: bool) -> None:
        self._until = time.perf_counter() + BUSY_PATIENCE_S if has_begun else 0.0
        self._pause = _FIRST_PAUSE_S

    async def wait(self, error: BusyError) -> None:
        """Wait before the call is made again. Raises error when it is time to give up."""
        if time.perf_counter() + self._pause > self._until:
            raise error
        await asyncio.sleep(self._pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_S)


@dataclass(frozen=True, slots=True)
class EngineBinding:
    """Target model of a request and how to call it. lookahead: W, N and G to send, if any. costs: measured times of
    calls; with them, only drafts that save time are sent."""

    target: Target
    traits: TargetTraits
    strategy: str
    lookahead: LookaheadConfig | None = None
    costs: CallCosts | None = None

    @property
    def is_streamed(self) -> bool:
        """Whether the target's own stream is the output. A second call would compute the prompt again where the KV
        cache of an ended call is not kept, restart the window and the grammar, and draw other noise."""
        return self.traits.limits is not None and self.strategy in PIECE_TOKENS

    async def response(
        self, tensors: Mapping[str, Array], outputs: Sequence[str], call_id: str, has_begun: bool
    ) -> tuple[Tensors, float]:
        """The target's response and the time of the call. A new request may be refused because the queue is full; a
        running one waits until there is room, or its client leaves."""
        patience = Patience(has_begun)
        while True:
            started = time.perf_counter()
            try:
                return await self.target.call(tensors, outputs, call_id), started
            except BusyError as error:
                await patience.wait(error)

    async def responses(
        self, tensors: Mapping[str, Array], call_id: str, has_begun: bool
    ) -> AsyncGenerator[Tensors, None]:
        """The target's responses to one call. Waits for a busy target as `response` does."""
        patience, is_answered = Patience(has_begun), False
        while True:
            try:
                async with aclosing(self.target.stream(tensors, self.traits.outputs, call_id)) as responses:
                    async for response in responses:
                        is_answered = True
                        yield response
                return
            except BusyError as error:  # noqa: PERF203  # one call in a thousand is made again
                if is_answered:
                    raise
                await patience.wait(error)
