"""The engine that one request is sent to, and calls to it that outlast a full queue."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from pipeline.config.schema import LookaheadConfig
from pipeline.engine.traits import TargetTraits
from pipeline.errors import BusyError
from pipeline.triton_models.call_costs import CallCosts
from pipeline.triton_models.patience import Patience
from pipeline.triton_models.steps import PIECE_TOKENS
from pipeline.triton_models.target import Target
from pipeline.triton_models.tensors import Array, Tensors


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
        """Whether the target's own stream is the output. A call anew would compute the prompt again where the KV cache
        of an ended call is not kept, begin the window and the grammar anew, and draw other noise."""
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
        """The target's responses to one call; as patient as `response`."""
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
