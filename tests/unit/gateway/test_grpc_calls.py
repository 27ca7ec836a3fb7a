"""gRPC calls whose message does not arrive: they hold no memory without a key, and are bounded with one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from pipeline.config.schema import ApiKey
from pipeline.gateway import grpc_app
from pipeline.gateway.deployment import Deployments
from pipeline.gateway.grpc_app import SERVICE, GrpcGateway
from pipeline.gateway.tenants import Tenants
from tests.patience import PATIENCE_S
from tests.unit.gateway.gateways import api_key, deployment_at, grpc_server, spec_of
from tests.unit.triton_stand_in import serving

ALICE = (("x-api-key", "alice"),)


@asynccontextmanager
async def channel_to(keys: Sequence[ApiKey] = (), **config: Any) -> AsyncIterator[grpc.aio.Channel]:
    """A client's channel to a gateway in front of a stand-in for Triton."""
    async with serving() as (_, url):
        spec = spec_of(*keys, **config)
        deployments = Deployments(deployment_at(int(url.rpartition(":")[2])))
        served = GrpcGateway(spec, Tenants(spec.api_keys, spec.config), deployments)
        async with (
            grpc_server(lambda server: server.add_generic_rpc_handlers((served.handlers(),))) as port,
            grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.enable_http_proxy", 0)]) as channel,
        ):
            yield channel
        await deployments.close()


def opened(channel: grpc.aio.Channel, method: str, **options: Any) -> Any:
    """A call that sends no message."""
    return channel.stream_unary(f"/{SERVICE}/{method}")(**options)


async def status_of(call: Any) -> tuple[grpc.StatusCode, str]:
    return await asyncio.wait_for(call.code(), PATIENCE_S), await call.details()


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer", "ModelMetadata", "ServerMetadata"])
def test_a_call_without_a_key_is_refused_before_its_message(method: str) -> None:
    async def work() -> None:
        async with channel_to([api_key("alice")]) as channel:
            assert (await status_of(opened(channel, method)))[0] is grpc.StatusCode.UNAUTHENTICATED

    asyncio.run(work())


def test_a_message_that_does_not_arrive_or_is_missing_ends_its_call() -> None:
    async def work() -> None:
        async with channel_to(body_timeout_s=0.1) as channel:
            call = opened(channel, "ModelInfer")
            assert await status_of(call) == (
                grpc.StatusCode.DEADLINE_EXCEEDED,
                "the message of the call did not arrive within 0.1 s",
            )
            call = opened(channel, "ModelInfer")
            await call.done_writing()
            assert await status_of(call) == (grpc.StatusCode.INVALID_ARGUMENT, "the call has no message")

    asyncio.run(work())


def test_open_calls_are_bounded_and_those_that_end_make_room() -> None:
    async def work() -> None:
        async with channel_to([api_key("alice")], max_connections=2) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            kinds = [
                lambda: stub.ModelStreamInfer(metadata=ALICE),
                lambda: opened(channel, "ModelInfer", metadata=ALICE),
            ]
            calls = [begin() for begin in kinds]
            refused = (grpc.StatusCode.UNAVAILABLE, "busy: 2 gRPC calls are open; send the request again")
            while await status_of(stub.ModelStreamInfer(iter(()), metadata=ALICE)) != refused:  # until both are open
                calls = [begin() if call.done() else call for begin, call in zip(kinds, calls, strict=True)]
            await calls[0].done_writing()
            assert (await status_of(calls[0]))[0] is grpc.StatusCode.OK
            assert (await status_of(stub.ModelStreamInfer(iter(()), metadata=ALICE)))[0] is grpc.StatusCode.OK

    asyncio.run(work())


def test_calls_without_a_key_take_no_place_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_app, "_MAX_WITHOUT_KEY", 1)

    async def work() -> None:
        async with channel_to([api_key("alice")], max_connections=1) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            waiting = opened(channel, "ModelReady")
            while (await status_of(stub.ModelReady(pb.ModelReadyRequest(name="x"))))[0] is grpc.StatusCode.NOT_FOUND:
                pass  # until the first call is open
            assert (await stub.ServerReady(pb.ServerReadyRequest())).ready
            assert (await status_of(stub.ModelStreamInfer(iter(()), metadata=ALICE)))[0] is grpc.StatusCode.OK
            waiting.cancel()

    asyncio.run(work())
