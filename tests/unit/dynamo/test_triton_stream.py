"""The worker's gRPC calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import InferResult, service_pb2

from pipeline import triton_grpc
from pipeline.dynamo import triton_stream
from pipeline.dynamo.triton_stream import TokenChunk, TritonStream
from pipeline.errors import BusyError, EngineError, RequestError
from pipeline.request_ids import chosen_id
from tests.patience import PATIENCE_S
from tests.unit.triton_stand_in import Triton, failed, response, serving

TENSORS = {
    "text_input": np.asarray([["größer".encode()]], np.object_),
    "input_ids": np.asarray([[5, 6, 7]], np.int32),
    "seed": np.asarray([[2**64 - 1]], np.uint64),
    "stop_words": np.asarray([[b"a", b"", b"bc"]], np.object_),
    "stream": np.asarray([[True]]),
}
STATISTICS = {"num_draft_tokens": 3}


@asynccontextmanager
async def connected(*answers: Any) -> AsyncIterator[tuple[TritonStream, Triton]]:
    """A client of a stand-in for Triton, which sends the answers."""
    async with serving(*answers) as (triton, url):
        stream = TritonStream(url, "secret")
        try:
            yield stream, triton
        finally:
            await stream.close()


async def chunks_of(stream: TritonStream) -> list[TokenChunk]:
    return [chunk async for chunk in stream.generate(TENSORS, "id", {"traceparent": "00-a-b-01"})]


async def test_a_request_arrives_with_all_its_tensors() -> None:
    async with connected(response(finish_reason="length")) as (stream, triton):
        await chunks_of(stream)

    (request,) = triton.requests
    read = InferResult(
        service_pb2.ModelInferResponse(
            outputs=[
                service_pb2.ModelInferResponse.InferOutputTensor(name=t.name, datatype=t.datatype, shape=t.shape)
                for t in request.inputs
            ],
            raw_output_contents=request.raw_input_contents,
        )
    )
    for name, value in TENSORS.items():
        np.testing.assert_array_equal(read.as_numpy(name), value)
    assert read.as_numpy("traceparent").reshape(-1).tolist() == [b"00-a-b-01"]
    assert (request.model_name, chosen_id(request.id)) == ("lookahead_bls", "id")
    assert request.id != "id"  # a stop that comes first ends only this attempt
    assert triton.metadata["triton-grpc-protocol-lookahead-key"] == "secret"


async def test_chunks_come_with_all_that_belongs_to_their_tokens() -> None:
    ids, log_probs = np.asarray([[[8, 9]]], np.int32), np.asarray([[[-0.5, -1.0]]], np.float32)
    top_ids, top = np.asarray([[[8, 1], [9, 2]]], np.int32), np.asarray([[[-0.5, -2.0], [-1.0, -4.0]]], np.float32)

    answers = [
        response(output_ids=ids),
        response(output_ids=ids, output_log_probs=log_probs, top_logprob_ids=top_ids, top_logprobs=top),
        response(output_ids=ids[..., :0], finish_reason="end_token", statistics=json.dumps(STATISTICS)),
    ]

    tops = (((8, -0.5), (1, -2.0)), ((9, -1.0), (2, -4.0)))
    async with connected(*answers) as (stream, _):
        assert await chunks_of(stream) == [
            TokenChunk([8, 9]),
            TokenChunk([8, 9], log_probs=(-0.5, -1.0), top=tops),
            TokenChunk([], "end_token", STATISTICS),
        ]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, RequestError),
        (grpc.StatusCode.UNAVAILABLE, EngineError),
        (failed("max_tokens is -1; it must be at least 1"), RequestError),
        (failed("busy: 8 requests are waiting"), BusyError),
        (failed("[request id: 3] Exceeds maximum queue size"), BusyError),
        (failed("Stub process 'x' is not healthy"), EngineError),
        (failed("the server is being stopped or exchanged for another"), EngineError),
        (failed("GRPC server is shutting down and has stopped accepting new requests."), EngineError),
        (failed("internal error: KeyError('x')"), RuntimeError),
        (response(output_ids=np.asarray([[1]], np.int32)), EngineError),  # and no more
    ],
)
async def test_errors_are_ours(answer: Any, error: type[Exception]) -> None:
    async with connected(answer) as (stream, _):
        with pytest.raises(error) as caught:
            await chunks_of(stream)
    assert type(caught.value) is error


async def test_a_refused_stream_is_read_to_its_end() -> None:
    async with connected(failed("wrong"), response()) as (stream, triton):
        with pytest.raises(RequestError, match="wrong"):
            await chunks_of(stream)
    assert triton.was_read.is_set()
    assert "triton_grpc_error" not in triton.metadata  # it makes Triton use freed memory


@pytest.mark.parametrize("is_closed", [True, False])
async def test_the_last_chunk_does_not_wait_for_the_end_of_the_stream(is_closed) -> None:
    async with connected(response(finish_reason="length"), None) as (stream, triton):
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
    assert not triton.was_cancelled.is_set()


@pytest.mark.parametrize("how", ["closed", "cancelled"])
@pytest.mark.parametrize("obeys", [True, False])
async def test_a_request_that_nobody_waits_for_is_stopped_and_cancelled_only_if_it_goes_on(monkeypatch, how, obeys):
    monkeypatch.setattr(triton_grpc, "LEAVE_S", PATIENCE_S)
    one = response(output_ids=np.asarray([[1]], np.int32))
    async with connected(one, None, response(finish_reason="length")) as (stream, triton):
        triton.obeys = obeys
        if not obeys:  # no earlier: the limit is that of the stop, too
            triton.on_stop = lambda: monkeypatch.setattr(triton_grpc, "LEAVE_S", 0.1)
        chunks = stream.generate(TENSORS, "id", {})
        await anext(chunks)
        if how == "cancelled":
            waiting = asyncio.ensure_future(anext(chunks))
            await asyncio.sleep(0.01)
            waiting.cancel()
            await asyncio.wait([waiting])
        await chunks.aclose()
        await asyncio.wait_for((triton.was_read if obeys else triton.was_cancelled).wait(), PATIENCE_S)
    assert triton.stopped == [request.id for request in triton.requests]
    assert (triton.was_read.is_set(), triton.was_cancelled.is_set()) == (obeys, not obeys)


async def test_a_server_that_hangs_is_not_ready(monkeypatch) -> None:
    monkeypatch.setattr(triton_stream, "_READY_S", 0.1)
    async with await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0) as silent:
        stream = TritonStream(f"127.0.0.1:{silent.sockets[0].getsockname()[1]}")
        assert not await asyncio.wait_for(stream.is_ready(), PATIENCE_S)
        await stream.close()


async def test_a_server_that_is_gone_is_not_ready(monkeypatch) -> None:
    monkeypatch.setattr(triton_stream, "_READY_S", PATIENCE_S)
    async with connected() as (stream, _):
        gone = TritonStream("127.0.0.1:1")
        found = [(await each.is_ready(), each.cannot_be_reached) for each in (stream, gone)]
        await gone.close()
    assert found == [(True, False), (False, True)]
