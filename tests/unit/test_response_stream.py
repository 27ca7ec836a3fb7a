"""Streams that the reader closes early."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator

import pytest

from pipeline.response_stream import Departures, ResponseStream


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


class LostCall(SilentCall):
    """A call that fails once it is cancelled."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        await self._end.wait()
        raise RuntimeError("the connection is lost")
        yield b""


def test_a_call_whose_request_cannot_be_stopped_is_cancelled() -> None:
    async def stop() -> None:
        raise RuntimeError("the model is gone")

    async def leave() -> list[bytes]:
        departures, responses = Departures(), ResponseStream(SilentCall())
        departures.begin(responses, stop)
        await departures.wait()
        return [response async for response in responses]

    assert asyncio.run(leave()) == []


def test_the_error_of_a_call_that_nobody_reads_any_more_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def stop() -> None:
        raise RuntimeError("the model is gone")

    async def leave() -> None:
        departures, responses = Departures(), ResponseStream(LostCall())
        reader = asyncio.ensure_future(anext(responses))
        await asyncio.sleep(0)
        reader.cancel()
        departures.begin(responses, stop)
        await departures.wait()
        await asyncio.sleep(0.01)

    asyncio.run(leave())
    gc.collect()
    assert "the connection is lost" not in caplog.text
    assert "the model is gone" in caplog.text
