"""A gateway in front of several Triton servers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import grpc
import httpx
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from pipeline.gateway.deployment import Deployments
from tests.patience import PATIENCE_S
from tests.unit.gateway.gateways import (
    Behind,
    behind,
    client_of,
    deployment_at,
    deployment_of,
    json_answer,
    spec_of,
    until,
)

CHAT = "/v1/chat/completions"
BODY = {"model": "m", "messages": []}


class Ready(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """A Triton server that is ready."""

    async def ServerReady(self, request: Any, context: Any) -> Any:
        return pb.ServerReadyResponse(ready=True)


async def ready_server(port: int = 0) -> tuple[grpc.aio.Server, int]:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Ready(), server)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    return server, port


async def test_grpc_calls_go_to_the_first_triton_server_that_can_be_reached():
    (first, one), (second, two) = await ready_server(), await ready_server()
    spec = deployment_of()
    tritons = tuple(spec.tritons[0].model_copy(update={"grpc": f"127.0.0.1:{port}"}) for port in (one, two))
    deployments = Deployments(spec.model_copy(update={"tritons": tritons}))
    deployment = deployments.current

    async def asked() -> int:
        """Place of the server that responds."""
        triton = await deployment.triton()
        await triton.stub.ServerReady(pb.ServerReadyRequest())
        return deployment.grpc.index(triton)

    assert await asked() == 0
    await first.stop(0)
    await until(lambda: deployment.grpc[0].channel.get_state() is not grpc.ChannelConnectivity.READY)
    assert await asked() == 1
    first, _ = await ready_server(one)
    await until_async(asked, 0)
    for each in (first, second):
        await each.stop(0)
    assert await deployment.triton() is deployment.grpc[0]
    await deployments.close()


async def until_async(found: Callable[[], Awaitable[object]], value: object) -> None:
    with anyio.fail_after(PATIENCE_S):
        while await found() != value:
            await asyncio.sleep(0.05)


def test_health_of_the_openai_api_counts_each_triton_server():
    statuses = {"triton:1": 400, "triton:2": 200, "front:1": 200}

    def act(request: httpx.Request) -> httpx.Response:
        return json_answer(statuses[f"{request.url.host}:{request.url.port}"], {})

    async def health() -> int:
        spec = spec_of()
        tritons = (*spec.deployment.tritons, *deployment_of(2).tritons)
        deployments = Deployments(spec.deployment.model_copy(update={"tritons": tritons}))
        async with client_of(Behind(act, is_ready=None), spec, deployments=deployments) as client:
            return (await client.get("/health")).status_code

    assert asyncio.run(health()) == 200
    statuses["triton:2"] = 400
    assert asyncio.run(health()) == 400
    statuses |= {"triton:1": 200, "front:1": 404}
    assert asyncio.run(health()) == 503


async def test_a_server_is_not_ready_before_grpc_calls_to_it_succeed():
    """Its channel connects again a little after the server has started again."""
    first, port = await ready_server()
    deployments = Deployments(deployment_at(port))
    (triton,) = deployments.current.grpc
    await first.stop(0)
    with pytest.raises(grpc.aio.AioRpcError):
        await triton.stub.ServerReady(pb.ServerReadyRequest())

    async with client_of(behind(), spec_of(), deployments=deployments) as client:

        async def statuses() -> list[int]:
            paths = ("live", "ready")
            return [(await client.get(f"/v2/health/{path}", timeout=PATIENCE_S)).status_code for path in paths]

        assert await statuses() == [200, 503]
        first, _ = await ready_server(port)
        await until_async(statuses, [200, 200])
        assert (await triton.stub.ServerReady(pb.ServerReadyRequest())).ready
    await first.stop(0)
    await deployments.close()
