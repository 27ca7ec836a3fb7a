"""Failover of a worker's requests between the Triton servers of its machine.

An output that has begun continues with the same tokens on another server. The new prompt is the prompt and the tokens
so far, and the sampling noise depends only on the seed and the absolute position of a token.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing

from pipeline.dynamo.request_tensors import TokenRequest, resumed
from pipeline.dynamo.triton_stream import TokenChunk, TritonStream
from pipeline.errors import BusyError, EngineError

# Time limits for finding a ready server of this machine. _SEARCH_S applies if there are other machines: Dynamo then
# migrates the request to one of their workers.
_SEARCH_S = 0.5
_RETURN_S = 60.0
# Time limit for a busy server to continue an output that has begun.
_BUSY_S = 120.0
_POLL_S = 0.1


class TritonServers:
    """Sends requests to one of several servers. own: the preferred server. others: used while it cannot be reached.
    has_other_machines: whether workers of other machines can continue a request."""

    def __init__(self, own: TritonStream, others: Sequence[TritonStream], has_other_machines: bool) -> None:
        self.own = own
        self._has_other_machines = has_other_machines
        self._all = (own, *others)

    async def generate(
        self, wanted: TokenRequest, request_id: str, trace: Mapping[str, str]
    ) -> AsyncGenerator[TokenChunk, None]:
        """Yield the chunks of the output as they arrive, and continue on another server if one fails. Raises the errors
        of `TritonStream.generate`; RuntimeError only for a second fault. If no server is ready in time, raises
        EngineError if there are other machines, else BusyError."""
        server = await self._ready_one() if self.own.cannot_be_reached else self.own
        busy_since, had_fault = None, False
        while wanted.num_remaining_tokens:
            token_ids: list[int] = []
            try:
                async with aclosing(server.generate(wanted.tensors, request_id, trace)) as chunks:
                    async for chunk in chunks:
                        busy_since = None
                        token_ids += chunk.token_ids
                        yield chunk
                return
            except (EngineError, RuntimeError) as error:
                is_fault = isinstance(error, RuntimeError)
                if is_fault and had_fault:  # the first one may be that of a server that is about to end
                    raise
                had_fault |= is_fault
                wanted = resumed(wanted, token_ids)
                await asyncio.sleep(_POLL_S)  # a server may report itself ready although one of its models has died
                server = await self._ready_one()
            except BusyError:
                wanted = resumed(wanted, token_ids)
                busy_since = busy_since or time.monotonic()
                # The client can send a new request again, but not one whose output has begun.
                if not wanted.num_resumed_tokens or time.monotonic() - busy_since > _BUSY_S:
                    raise
                await asyncio.sleep(_POLL_S)
        yield TokenChunk([], "length")

    async def close(self) -> None:
        for server in self._all:
            await server.close()

    async def first_ready(self) -> TritonStream | None:
        """The first ready server; None if none is ready."""
        for server in self._all:
            if await server.is_ready():
                return server
        return None

    async def _ready_one(self) -> TritonStream:
        """The first ready server. Raises EngineError or BusyError if none is ready in time."""
        until = time.monotonic() + (_SEARCH_S if self._has_other_machines else _RETURN_S)
        while True:
            if (server := await self.first_ready()) is not None:
                return server
            if time.monotonic() > until:
                sentence = "Triton is not ready on this machine"
                raise EngineError(sentence) if self._has_other_machines else BusyError(sentence)
            await asyncio.sleep(_POLL_S)
