"""The Triton servers that one worker may send a request to: its own, and those beside it for when its own is gone.

An output that has begun goes on elsewhere as it would have: its prompt is then the prompt and the tokens so far, and
the seed and the absolute position of a token decide the noise that it is sampled with.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing

from pipeline.dynamo.request_tensors import TokenRequest, resumed
from pipeline.dynamo.triton_stream import TokenChunk, TritonStream
from pipeline.errors import BusyError, EngineError

# For how long a request looks for a server that is ready; then workers of other machines are asked.
_SEARCH_S = 0.5
# For how long an output that has begun waits for a place on a server that has none.
_BUSY_S = 120.0
_POLL_S = 0.1


class TritonServers:
    """Sends requests to one of several servers. own: the one that gets them. others: those that take over while it
    cannot be reached."""

    def __init__(self, own: TritonStream, others: Sequence[TritonStream] = ()) -> None:
        self.own = own
        self._all = (own, *others)

    async def generate(
        self, wanted: TokenRequest, request_id: str, trace: Mapping[str, str]
    ) -> AsyncGenerator[TokenChunk, None]:
        """Chunks as they come, from one server after the other if need be. Raises as `TritonStream.generate` does, and
        EngineError only if none of them is there."""
        server, busy_since = self.own, None
        while wanted.num_remaining_tokens:
            token_ids: list[int] = []
            try:
                async with aclosing(server.generate(wanted.tensors, request_id, trace)) as chunks:
                    async for chunk in chunks:
                        token_ids += chunk.token_ids
                        yield chunk
                return
            except EngineError:
                wanted = resumed(wanted, token_ids)
                await asyncio.sleep(_POLL_S)  # a server may report itself ready although one of its models has died
                server = await self._ready_one()
            except BusyError:
                wanted = resumed(wanted, token_ids)
                busy_since = busy_since or time.monotonic()
                # A new request is refused, and its client sends it again; one that has begun has no way back.
                if not wanted.num_resumed_tokens or time.monotonic() - busy_since > _BUSY_S:
                    raise
                await asyncio.sleep(_POLL_S)
        yield TokenChunk([], "length")

    async def close(self) -> None:
        for server in self._all:
            await server.close()

    async def _ready_one(self) -> TritonStream:
        """The first that is ready. Raises EngineError if none is for a while."""
        until = time.monotonic() + _SEARCH_S
        while True:
            for server in self._all:
                if await server.is_ready():
                    return server
            if time.monotonic() > until:
                raise EngineError("no server of this machine is ready")
            await asyncio.sleep(_POLL_S)
