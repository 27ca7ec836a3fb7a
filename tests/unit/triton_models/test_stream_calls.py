"""Streams between two models of a server."""

from __future__ import annotations

import asyncio
import re
from contextlib import aclosing
from typing import Any

import grpc
import numpy as np
import pytest

from pipeline.errors import BusyError, RequestError
from pipeline.triton_models.own_server import GrpcAddress
from pipeline.triton_models.python_backend import CallResponses
from pipeline.triton_models.stream_calls import StreamingCaller
from tests.unit.triton_stand_in import Triton, failed, response, serving

IDS = np.asarray([[1, 2]], np.int32)


STOP = {"stop": np.asarray([[True]])}


def streamed(*answers: Any, num_wanted: int | None = None) -> tuple[list[Any], Exception | None, Triton]:
    """The responses as a caller gets them, of which it reads as many as wanted, and the error, if there is one."""

    async def read() -> tuple[list[Any], Exception | None, Triton]:
        found: list[Any] = []
        failure: Exception | None = None
        async with serving(*answers) as (triton, url):
            caller = StreamingCaller("engine", STOP, CallResponses())
            caller.connect(lambda: GrpcAddress(url, {"key": "secret"}))
            try:
                async with aclosing(caller.stream({"input_ids": IDS}, ["output_ids"], "id")) as responses:
                    async for item in responses:
                        found.append(item)
                        if len(found) == num_wanted:
                            break
            except Exception as error:
                failure = error
            await caller.close()
        return found, failure, triton

    return asyncio.run(read())


def test_each_response_comes_with_its_outputs() -> None:
    found, failure, triton = streamed(response(output_ids=IDS), response())

    assert [{name: value.tolist() for name, value in item.items()} for item in found] == [{"output_ids": [[1, 2]]}, {}]
    assert failure is None
    assert triton.metadata["key"] == "secret"
    assert "triton_grpc_error" not in triton.metadata  # it makes Triton use freed memory
    assert [(request.model_name, request.id) for request in triton.requests] == [("engine", "id")]


@pytest.mark.parametrize(
    ("answer", "error", "sentence"),
    [
        (failed("Error when running inference: beam_width is 4"), RequestError, "^beam_width is 4$"),
        (failed("[request id: 3] Exceeds maximum queue size"), BusyError, "Exceeds"),
        (failed("busy: 8 requests are waiting already"), BusyError, "8 requests"),
        (failed("the server is being stopped or exchanged for another"), BusyError, "exchanged"),
        (failed("internal error: KeyError('x')"), RuntimeError, "KeyError"),
        (grpc.StatusCode.UNAVAILABLE, BusyError, "the reason"),
        (grpc.StatusCode.INVALID_ARGUMENT, RequestError, "the reason"),
    ],
)
def test_a_refusal_is_read_to_the_end_and_raised(answer: Any, error: type[Exception], sentence: str) -> None:
    found, failure, triton = streamed(answer)

    assert not found
    assert type(failure) is error
    assert re.search(sentence, str(failure))
    assert triton.was_read.is_set() is not isinstance(answer, grpc.StatusCode)


def test_leaving_early_stops_the_request() -> None:
    found, failure, triton = streamed(response(output_ids=IDS), None, response(), num_wanted=1)

    assert (len(found), failure) == (1, None)
    assert triton.stopped == ["id"]
    assert triton.was_read.is_set()
    assert not triton.was_cancelled.is_set()
