"""Streams that a reader leaves before their end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from pipeline.triton_models.streams import Departures, ResponseStream


class SilentCall:
    """A call without responses until it is cancelled."""

    def __init__(self) -> None:
        self._end = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        await self._end.wait()
        for _ in ():
            yield b""

    def cancel(self) -> None:
        self._end.set()


def test_a_call_whose_request_cannot_be_stopped_is_cancelled() -> None:
    async def stop() -> None:
        raise RuntimeError("the model is gone")

    async def leave() -> list[bytes]:
        departures, responses = Departures(), ResponseStream(SilentCall())
        departures.begin(responses, stop)
        await departures.wait()
        return [response async for response in responses]

    assert asyncio.run(leave()) == []
