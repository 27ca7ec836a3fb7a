"""Streams that the reader closes early, and the tensors of requests and responses."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import numpy as np
import pytest

from pipeline import triton_grpc
from pipeline.triton_grpc import TritonGrpc, infer_request, tensors_of
from tests.logs import Logs
from tests.unit.triton_stand_in import response


class SilentCall:
    """A call without responses until it is cancelled."""

    def __init__(self) -> None:
        self._end = asyncio.Event()
        self.is_cancelled = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        await self._end.wait()
        for _ in ():
            yield b""

    def cancel(self) -> None:
        self.is_cancelled = True
        self._end.set()

    def stop(self) -> Exception:
        """The error of the request that stops this one."""
        return RuntimeError("the model is gone")


class EndingCall(SilentCall):
    """A call that ends after its stop, whose answer comes too late."""

    def stop(self) -> Exception:
        asyncio.get_running_loop().call_later(0.02, self._end.set)
        return grpc.aio.AioRpcError(grpc.StatusCode.DEADLINE_EXCEEDED, grpc.aio.Metadata(), grpc.aio.Metadata())


class LostCall(SilentCall):
    """A call that fails once it is cancelled."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        await self._end.wait()
        raise RuntimeError("the connection is lost")
        yield b""


class Channel:
    """Answers a request with the given call."""

    def __init__(self, call: SilentCall) -> None:
        self._call = call

    def unary_stream(self, method: str, **options: Any) -> Callable[..., SilentCall]:
        return self._begun

    unary_unary = stream_stream = unary_stream

    async def close(self) -> None:
        pass

    def _begun(self, request: str, **options: Any) -> SilentCall:
        if request == "stop":
            raise self._call.stop()
        return self._call


def calls_to(call: SilentCall) -> TritonGrpc:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton_grpc.grpc.aio, "insecure_channel", lambda address, options: Channel(call))
        return TritonGrpc("host:1")


def leave(call: SilentCall) -> None:
    """Read a call until the reader is cancelled, and wait until its request has been abandoned."""

    async def run() -> None:
        calls = calls_to(call)

        async def read() -> None:
            async for _ in calls.responses("request", lambda: "stop"):
                pass

        reader = asyncio.ensure_future(read())
        await asyncio.sleep(0.01)
        reader.cancel()
        await asyncio.wait([reader])
        await calls.close()
        await asyncio.sleep(0.01)

    asyncio.run(run())


def test_a_call_whose_request_cannot_be_stopped_is_cancelled() -> None:
    call = SilentCall()
    leave(call)
    assert call.is_cancelled


def test_a_call_that_ends_is_not_cancelled_although_the_answer_to_its_stop_is_late() -> None:
    """As after a suspension of this process."""
    call = EndingCall()
    leave(call)
    assert not call.is_cancelled


async def test_a_request_without_a_stop_is_cancelled_after_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_grpc, "LEAVE_S", 0.05)
    call = SilentCall()

    calls = calls_to(call)
    answers = calls.responses("request")
    reader = asyncio.ensure_future(anext(answers))
    await asyncio.sleep(0.01)
    reader.cancel()
    await asyncio.wait([reader])
    await calls.close()
    assert call.is_cancelled


def test_the_error_of_a_call_that_nobody_reads_any_more_is_not_logged(logs: Logs) -> None:
    gc.freeze()  # then the search for garbage visits only what this test has created
    leave(LostCall())
    gc.collect()
    assert "the connection is lost" not in logs.text
    assert "the model is gone" in logs.text


def test_tensors_of_a_request() -> None:
    tensors = {"ids": np.asarray([[1, 2]], np.int32), "text": np.asarray([[b"ab", b""]], np.object_)}
    request = infer_request("model", "id", tensors, ["out"])

    assert [(each.name, each.datatype, list(each.shape)) for each in request.inputs] == [
        ("ids", "INT32", [1, 2]),
        ("text", "BYTES", [1, 2]),
    ]
    assert list(request.raw_input_contents) == [tensors["ids"].tobytes(), b"\2\0\0\0ab\0\0\0\0"]
    assert [each.name for each in request.outputs] == ["out"]


def test_tensors_of_a_response() -> None:
    found = tensors_of(response(ids=np.asarray([[3, 4]], np.int32), text="a\u00e4").infer_response)

    assert found["ids"].tolist() == [[3, 4]]
    assert found["text"].tolist() == ["a\u00e4".encode()]
