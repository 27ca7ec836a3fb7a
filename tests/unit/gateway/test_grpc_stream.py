"""gRPC streams with disconnecting clients, and the ids of their requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from pipeline import triton_grpc
from pipeline.config.schema import GatewayConfig
from pipeline.gateway import grpc_app
from pipeline.gateway.tenants import Tenants
from pipeline.request_ids import chosen_id
from tests.patience import PATIENCE_S
from tests.unit import triton_stand_in
from tests.unit.gateway.gateways import channel_to, deployment_at, grpc_gateway, spec_of, until
from tests.unit.triton_stand_in import Triton, response, serving

IDS = np.asarray([[1]], np.int32)


@asynccontextmanager
async def stream_to(*answers: Any, tenants: Tenants | None = None, **config: Any) -> AsyncIterator[tuple[Any, Triton]]:
    """A client's stream through a gateway to a stand-in for Triton, which sends the answers to its first request."""
    async with (
        serving(*answers) as (triton, url),
        grpc_gateway(deployment_at(url), spec_of(**config), tenants) as (port, _, _),
        channel_to(port) as channel,
    ):
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer, triton


def final() -> pb.ModelStreamInferResponse:
    answer = response(output_ids=IDS)
    answer.infer_response.parameters["triton_final_response"].bool_param = True
    return answer


def request(request_id: str, model: str = "lookahead_bls") -> pb.ModelInferRequest:
    return pb.ModelInferRequest(model_name=model, id=request_id)


@pytest.mark.parametrize("request_id", ["mine", "", "a#0123456789abcdef"])
async def test_a_client_gets_its_own_id_back_and_the_server_one_that_no_other_has(request_id: str) -> None:
    answer = response(output_ids=IDS)
    async with stream_to(answer) as (stream, triton):
        found = [answer.infer_response.id async for answer in stream([request(request_id)])]
        sent = triton.requests[0].id
    assert found == [request_id]
    assert sent != request_id
    assert chosen_id(sent) == request_id


@pytest.mark.parametrize("obeys", [True, False])
async def test_requests_of_a_client_that_leaves_are_stopped_and_cancelled_only_if_they_go_on(
    monkeypatch, obeys
) -> None:
    monkeypatch.setattr(triton_grpc, "LEAVE_S", PATIENCE_S)

    async with stream_to(response(output_ids=IDS), None, response()) as (stream, triton):
        triton.obeys = obeys
        if not obeys:  # no earlier: the limit is that of the stop, too
            triton.on_stop = lambda: monkeypatch.setattr(triton_grpc, "LEAVE_S", 0.2)
        call = stream([request("mine")])
        await call.read()
        call.cancel()
        await asyncio.wait_for((triton.was_read if obeys else triton.was_cancelled).wait(), PATIENCE_S)
    assert triton.stopped == [triton.requests[0].id]
    assert (triton.was_read.is_set(), triton.was_cancelled.is_set()) == (obeys, not obeys)


async def test_of_several_requests_the_one_that_has_not_ended_is_stopped() -> None:
    tenants = Tenants((), GatewayConfig())
    async with stream_to(None, tenants=tenants) as (stream, triton):
        call = stream()
        await call.write(request("long"))
        await until(lambda: triton.num_requests == 1)
        triton.answers = (final(),)
        await call.write(request("short"))
        assert (await call.read()).infer_response.id == "short"
        # The client has the response before the gateway ends the request.
        await until(lambda: tenants.num_running == 1)
        call.cancel()
        await until(lambda: bool(triton.stopped))
    assert [chosen_id(stopped) for stopped in triton.stopped] == ["long"]


async def test_a_client_that_leaves_while_its_stream_is_ended_holds_no_place(monkeypatch) -> None:
    monkeypatch.setattr(triton_stand_in, "PATIENCE_S", 2 * PATIENCE_S)  # the request does not end by itself
    monkeypatch.setattr(triton_grpc, "LEAVE_S", PATIENCE_S)

    tenants = Tenants((), GatewayConfig())
    async with stream_to(None, tenants=tenants, request_timeout_s=0.01) as (stream, triton):
        triton.obeys = False
        triton.on_stop = lambda: monkeypatch.setattr(triton_grpc, "LEAVE_S", 0.2)
        call = stream([request("mine")])
        await until(lambda: bool(triton.stopped))
        call.cancel()
        await until(lambda: not tenants.num_running)


async def test_the_deadline_of_a_client_does_not_cancel_the_stream_behind() -> None:
    async with stream_to(response(output_ids=IDS)) as (stream, triton):
        assert [answer async for answer in stream([request("mine")], timeout=PATIENCE_S)]
    assert triton.deadline_s is None


async def test_a_clients_own_stop_has_the_id_that_it_chose() -> None:
    async with stream_to() as (stream, triton):
        asked = request("mine")
        asked.inputs.add(name="stop", datatype="BOOL", shape=[1, 1])
        asked.raw_input_contents.append(b"\x01")
        assert [answer async for answer in stream([asked])] == []
    assert triton.stopped == ["mine"]


# More than gRPC itself buffers on the way.
MANY, BIG = 400, np.zeros((1, 25_000), np.int32)


async def settled(number: Callable[[], int]) -> int:
    """A number above 0 that no longer rises."""
    earlier = 0
    while not earlier or number() != earlier:
        earlier = number()
        await asyncio.sleep(0.1)
    return earlier


async def test_a_client_that_does_not_read_its_answers_fills_no_memory_and_keeps_nobody_from_theirs() -> None:
    async with stream_to(*[response(output_ids=BIG)] * MANY, final()) as (stream, triton):
        call = stream([request("mine")])
        assert await settled(lambda: triton.num_sent) < MANY
        triton.answers = (final(),)
        assert len([answer async for answer in stream([request("another")])]) == 1
        assert [answer.infer_response.id async for answer in call] == ["mine"] * (MANY + 1)


async def test_requests_of_a_client_that_does_not_read_end_after_the_time_limit(monkeypatch) -> None:
    tenants = Tenants((), GatewayConfig())
    answers = [response(output_ids=BIG)] * MANY
    async with stream_to(*answers, tenants=tenants, request_timeout_s=0.3) as (stream, _):
        call = stream([request("mine")])
        await until(lambda: tenants.num_running == 1)
        await until(lambda: not tenants.num_running)
        with pytest.raises(grpc.aio.AioRpcError, match=r"longer than 0\.3 s"):
            async for _ in call:
                pass


async def test_no_more_requests_are_read_of_a_client_that_does_not_read_their_refusals() -> None:
    num_sent = 0

    async def requests() -> AsyncIterator[pb.ModelInferRequest]:
        nonlocal num_sent
        for _ in range(MANY):
            yield request("m" * 100_000, "no model")
            num_sent += 1

    async with stream_to() as (stream, _):
        call = stream(requests())
        assert await settled(lambda: num_sent) < MANY
        assert len([answer async for answer in call]) == MANY


async def test_a_bug_of_the_gateway_ends_a_stream(monkeypatch, logs) -> None:
    def check_request(*_: object) -> None:
        raise KeyError("secret detail")

    monkeypatch.setattr(grpc_app, "check_request", check_request)

    async with stream_to() as (stream, _):
        with pytest.raises(grpc.aio.AioRpcError, match="gateway failed") as raised:
            await asyncio.wait_for(stream([request("mine")]).read(), PATIENCE_S)
        assert raised.value.code() is grpc.StatusCode.INTERNAL
    assert "secret detail" in logs.text


async def test_a_connection_without_a_call_is_closed_and_the_next_call_opens_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grpc_app, "_MAX_IDLE_MS", 200)

    async with grpc_gateway(deployment_at(1)) as (port, _, _), channel_to(port) as channel:
        await channel.channel_ready()
        await until(lambda: channel.get_state() is grpc.ChannelConnectivity.IDLE)
        with pytest.raises(grpc.aio.AioRpcError, match="the server is starting again"):  # the gateway's answer
            await service_pb2_grpc.GRPCInferenceServiceStub(channel).ServerReady(pb.ServerReadyRequest())
