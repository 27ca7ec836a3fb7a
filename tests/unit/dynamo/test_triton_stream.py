"""The worker's requests to Triton."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from pipeline.dynamo import triton_stream
from pipeline.dynamo.triton_stream import TokenChunk, TritonStream
from pipeline.errors import BusyError, EngineError, RequestError
from pipeline.request_ids import chosen_id
from tests.patience import PATIENCE_S
from tests.unit.dynamo.http_triton import Refusal, Triton, failed, serving, tokens

TENSORS = {
    "text_input": np.asarray([["größer".encode()]], np.object_),
    "input_ids": np.asarray([[5, 6, 7]], np.int32),
    "seed": np.asarray([[2**64 - 1]], np.uint64),
    "stop_words": np.asarray([[b"a", b"", b"bc"]], np.object_),
    "temperature": np.asarray([[0.7]], np.float32),
    "stream": np.asarray([[True]]),
}
STATISTICS = {"num_draft_tokens": 3}


@asynccontextmanager
async def connected(*answers: Any) -> AsyncIterator[tuple[TritonStream, Triton]]:
    """A client of a stand-in for Triton, which sends the answers."""
    async with serving(*answers) as (triton, address):
        stream = TritonStream(address, "secret")
        try:
            yield stream, triton
        finally:
            await stream.close()


async def chunks_of(stream: TritonStream) -> list[TokenChunk]:
    return [chunk async for chunk in stream.generate(TENSORS, "id", {"traceparent": "00-a-b-01"})]


async def test_a_request_arrives_with_all_its_tensors() -> None:
    async with connected(tokens(finish_reason="length")) as (stream, triton):
        await chunks_of(stream)

    (request,) = triton.requests
    own_id, temperature = request.pop("id"), request.pop("temperature")
    assert request == {
        "text_input": "größer",
        "input_ids": [5, 6, 7],
        "seed": 2**64 - 1,
        "stop_words": ["a", "", "bc"],
        "stream": True,
        "traceparent": "00-a-b-01",
    }
    assert np.float32(temperature) == np.float32(0.7)
    assert chosen_id(own_id) == "id"
    assert own_id != "id"  # a stop that comes first ends only this attempt
    assert (triton.headers["lookahead-key"], triton.headers["traceparent"]) == ("secret", "00-a-b-01")


async def test_a_text_that_no_request_can_hold_is_refused() -> None:
    tensors = {"stop_words": np.asarray([[b"a", b"\xed\xa0\x80"]], np.object_)}
    async with connected() as (stream, triton):
        with pytest.raises(RequestError, match="stop_words is not valid UTF-8"):
            await anext(stream.generate(tensors, "id", {}))
    assert (triton.requests, triton.stopped) == ([], [])


async def test_chunks_come_with_all_that_belongs_to_their_tokens() -> None:
    answers = [
        tokens(8, 9),
        tokens(
            8, 9, output_log_probs=[-0.5, -1.0], top_logprob_ids=[8, 1, 9, 2], top_logprobs=[-0.5, -2.0, -1.0, -4.0]
        ),
        tokens(8, output_log_probs=-0.5, top_logprob_ids=1, top_logprobs=-2.0),
        tokens(8, output_log_probs=-0.5, top_logprob_ids=[], top_logprobs=[]),
        tokens(finish_reason="end_token", statistics=json.dumps(STATISTICS)),
    ]

    tops = (((8, -0.5), (1, -2.0)), ((9, -1.0), (2, -4.0)))
    async with connected(*answers) as (stream, _):
        assert await chunks_of(stream) == [
            TokenChunk([8, 9]),
            TokenChunk([8, 9], log_probs=(-0.5, -1.0), top=tops),
            TokenChunk([8], log_probs=(-0.5,), top=(((1, -2.0),),)),
            TokenChunk([8], log_probs=(-0.5,)),
            TokenChunk([], "end_token", STATISTICS),
        ]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (failed("max_tokens is -1; it must be at least 1"), RequestError),
        (failed("busy: 8 requests are waiting"), BusyError),
        (failed("[request id: 3] Exceeds maximum queue size"), BusyError),
        (failed("Stub process 'x' is not healthy"), EngineError),
        (failed("the server is being stopped or exchanged for another"), EngineError),
        (failed("internal error: KeyError('x')"), RuntimeError),
        (Refusal(400, "max_tokens is -1; it must be at least 1"), RequestError),
        (Refusal(501, "the engine cannot do it"), RequestError),
        (Refusal(503, "busy: 8 requests are waiting"), BusyError),
        (Refusal(503, "no place"), EngineError),
        (Refusal(400, "Request for unknown model: 'lookahead_bls' is not ready"), EngineError),
        (Refusal(404, "Request for unknown model: 'lookahead_bls' is not found"), EngineError),
        (Refusal(500, "Unable to parse 'data'"), RuntimeError),
        (tokens(1), EngineError),  # and no more
    ],
)
async def test_errors_are_ours(answer: Any, error: type[Exception]) -> None:
    async with connected(answer) as (stream, triton):
        with pytest.raises(error) as caught:
            await chunks_of(stream)
    assert type(caught.value) is error
    assert triton.stopped == []


@pytest.mark.parametrize("is_closed", [True, False])
async def test_the_last_chunk_does_not_wait_for_the_end_of_the_stream(is_closed) -> None:
    async with connected(tokens(finish_reason="length"), None) as (stream, triton):
        chunks = stream.generate(TENSORS, "id", {})
        assert await asyncio.wait_for(anext(chunks), PATIENCE_S) == TokenChunk([], "length")
        if is_closed:
            await chunks.aclose()
        else:
            assert await anext(chunks, None) is None
        assert not triton.was_read.is_set()
        triton.stop("")
        await asyncio.wait_for(triton.was_read.wait(), PATIENCE_S)
    assert triton.stopped == [""]  # by this test only: the request had ended
    assert not triton.was_left.is_set()


async def test_a_stream_that_does_not_end_after_its_last_chunk_is_closed(monkeypatch) -> None:
    monkeypatch.setattr(triton_stream, "_LEAVE_S", 0.1)
    async with connected(tokens(finish_reason="length"), None) as (stream, triton):
        assert await chunks_of(stream) == [TokenChunk([], "length")]
        await asyncio.wait_for(triton.was_left.wait(), PATIENCE_S)
    assert triton.stopped == []


@pytest.mark.parametrize("how", ["closed", "cancelled"])
async def test_a_request_that_nobody_waits_for_is_stopped(how) -> None:
    async with connected(tokens(1), None) as (stream, triton):
        triton.obeys = False
        chunks = stream.generate(TENSORS, "id", {})
        await anext(chunks)
        if how == "cancelled":
            waiting = asyncio.ensure_future(anext(chunks))
            await asyncio.sleep(0.01)
            waiting.cancel()
            await asyncio.wait([waiting])
        await chunks.aclose()
        await asyncio.wait_for(triton.was_left.wait(), PATIENCE_S)
    assert triton.stopped == [request["id"] for request in triton.requests]


async def test_a_server_that_hangs_is_not_ready(monkeypatch) -> None:
    monkeypatch.setattr(triton_stream, "_READY_S", 0.1)
    async with await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0) as silent:
        stream = TritonStream(f"127.0.0.1:{silent.sockets[0].getsockname()[1]}")
        assert not await asyncio.wait_for(stream.is_ready(), PATIENCE_S)


async def test_a_server_that_is_gone_is_not_ready() -> None:
    async with connected() as (stream, triton):
        gone = TritonStream("127.0.0.1:1")
        found = [(await each.is_ready(), each.cannot_be_reached) for each in (stream, gone)]
        triton.is_ready = False
        found.append((await stream.is_ready(), stream.cannot_be_reached))
    assert found == [(True, False), (False, True), (False, False)]


async def test_a_server_that_has_ended_is_an_engine_error() -> None:
    async with connected() as (stream, _):
        pass
    with pytest.raises(EngineError, match="has ended or is shutting down"):
        await chunks_of(stream)
    assert stream.cannot_be_reached
