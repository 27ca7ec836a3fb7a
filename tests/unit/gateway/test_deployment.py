"""Exchange of the server behind the gateway: new requests go to the new one, running ones finish."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import httpx
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from pipeline import triton_grpc
from pipeline.gateway.deployment import Deployments
from tests.patience import PATIENCE_S
from tests.unit.gateway.gateways import (
    Behind,
    channel_to,
    client_of,
    deployment_at,
    deployment_of,
    events,
    grpc_gateway,
    grpc_server,
    spec_of,
    streamed,
    until,
)

CHAT = "/v1/chat/completions"
BODY = {"model": "m", "messages": []}


async def test_requests_go_to_the_new_server_and_running_ones_are_counted():
    deployments = Deployments(deployment_of(1))
    hosts, running = [], []

    def act(request: httpx.Request) -> httpx.Response:
        if not hosts:  # exchanged while the first request runs
            deployments.replace(deployment_of(2))
        hosts.append(f"{request.url.host}:{request.url.port}")
        running.append(deployments.num_running_earlier)
        return streamed(choices=[])

    async with client_of(Behind(act), spec_of(), deployments=deployments) as client:
        for _ in range(2):
            assert (await client.post(CHAT, json=BODY)).status_code == 200
    await deployments.close_idle()
    assert deployments.num_running_earlier == 0
    await deployments.close()
    assert hosts == ["front:1", "front:2"]
    assert running == [1, 0]


async def test_a_stream_goes_on_from_the_server_on_which_it_began():
    deployments = Deployments(deployment_of(1))

    def act(request: httpx.Request) -> httpx.Response:
        deployments.replace(deployment_of(2))
        return events(b'data: {"choices":[{"index":0,"text":"a"}]}\n\n', b"data: [DONE]\n\n")

    async with client_of(Behind(act), spec_of(), deployments=deployments) as client:
        answer = await client.post(CHAT, json=BODY | {"stream": True})
    await deployments.close()
    assert answer.content.endswith(b"data: [DONE]\n\n")


class Triton(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Answers each request of a stream with its own name, when it may."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.may_answer = asyncio.Event()
        self.num_streams = 0
        self.was_cancelled = False

    async def ModelStreamInfer(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        self.num_streams += 1
        try:
            async for request in requests:
                await self.may_answer.wait()
                answer = pb.ModelStreamInferResponse()
                answer.infer_response.id = request.id
                answer.infer_response.model_name = self.name
                answer.infer_response.parameters["triton_final_response"].bool_param = True
                yield answer
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        finally:
            self.num_streams -= 1


@asynccontextmanager
async def gateway_before_two() -> AsyncIterator[Any]:
    """A client's call to a gateway before the first of two servers, both servers, and a way to exchange them."""
    first, second = Triton("first"), Triton("second")
    adders = [lambda s, t=t: service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(t, s) for t in (first, second)]
    async with (
        grpc_server(adders[0]) as one,
        grpc_server(adders[1]) as two,
        grpc_gateway(deployment_at(one)) as (port, _, deployments),
        channel_to(port) as channel,
    ):
        call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer()
        yield call, first, second, deployments, lambda: deployments.replace(deployment_at(two))
        call.cancel()


def request_named(name: str) -> Any:
    return pb.ModelInferRequest(model_name="lookahead_bls", id=name)


def shown(answer: Any) -> tuple[str, str]:
    assert not answer.error_message
    return answer.infer_response.id, answer.infer_response.model_name


async def test_a_stream_of_requests_outlives_its_server():
    async with gateway_before_two() as (call, first, second, deployments, exchange):
        await call.write(request_named("a"))
        await until(lambda: deployments.current.num_running == 1)
        exchange()
        assert deployments.num_running_earlier == 1
        second.may_answer.set()
        await call.write(request_named("b"))
        seen = [shown(await call.read())]  # the old server is still at the first one
        await call.done_writing()
        first.may_answer.set()
        seen.append(shown(await call.read()))
        assert await call.read() is grpc.aio.EOF
        assert deployments.num_running_earlier == 0
    assert seen == [("b", "second"), ("a", "first")]


async def test_a_stream_without_requests_lets_its_server_go_and_is_served_by_the_new_one():
    async with gateway_before_two() as (call, first, second, deployments, exchange):
        first.may_answer.set()
        second.may_answer.set()
        await call.write(request_named("a"))
        await call.read()
        exchange()
        await deployments.close_idle()
        await until(lambda: first.num_streams == 0)
        assert not first.was_cancelled
        await call.write(request_named("b"))
        answer = shown(await call.read())
        await call.done_writing()
        assert await asyncio.wait_for(call.read(), PATIENCE_S) is grpc.aio.EOF
    assert answer == ("b", "second")


async def test_a_request_to_a_new_server_that_fails_at_once_holds_no_place(monkeypatch):
    monkeypatch.setattr(triton_grpc, "LEAVE_S", 0.2)

    async with gateway_before_two() as (call, _, _, deployments, _):
        await call.write(request_named("a"))
        await until(lambda: deployments.current.num_running == 1)
        deployments.replace(deployment_at(9))  # where nothing listens
        await call.write(request_named("b"))
        with pytest.raises(grpc.aio.AioRpcError, match="starting again"):
            async for _ in call:
                pass
        await until(lambda: not deployments.current.num_running and not deployments.num_running_earlier)


class Slow(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Reports its readiness after `may_answer`."""

    def __init__(self) -> None:
        self.is_asked, self.may_answer = asyncio.Event(), asyncio.Event()

    async def ServerReady(self, request: Any, context: Any) -> Any:
        self.is_asked.set()
        await self.may_answer.wait()
        return pb.ServerReadyResponse(ready=True)


@pytest.mark.parametrize(
    ("method", "body", "answer"),
    [
        ("/inference.GRPCInferenceService/ServerReady", b"", pb.ServerReadyResponse(ready=True).SerializeToString()),
        ("/grpc.health.v1.Health/Check", b"", b"\x08\x01"),
    ],
)
async def test_a_check_that_runs_while_the_server_is_exchanged_gets_its_answer(method, body, answer):
    slow = Slow()
    async with (
        grpc_server(lambda server: service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(slow, server)) as one,
        grpc_gateway(deployment_at(one)) as (port, _, deployments),
        channel_to(port) as channel,
    ):
        checking = asyncio.ensure_future(channel.unary_unary(method)(body, timeout=PATIENCE_S))
        await asyncio.wait_for(slow.is_asked.wait(), PATIENCE_S)
        deployments.replace(deployment_at(9))
        await deployments.close_idle()
        slow.may_answer.set()
        assert await checking == answer
