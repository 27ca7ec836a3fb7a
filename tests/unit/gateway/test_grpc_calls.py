"""gRPC calls whose message does not arrive: they hold no memory without a key, and are bounded with one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from pipeline.config.schema import ApiKey
from pipeline.gateway import grpc_app, grpc_stream
from pipeline.gateway.grpc_app import SERVICE
from pipeline.gateway.spec import GatewaySpec
from pipeline.gateway.tenants import Tenants
from tests.patience import PATIENCE_S
from tests.unit.gateway.gateways import (
    api_key,
    channel_to,
    deployment_at,
    deployment_of,
    grpc_gateway,
    spec_of,
    until,
)
from tests.unit.triton_stand_in import Triton, response, serving

ALICE = (("x-api-key", "alice"),)


@asynccontextmanager
async def gateway_to(spec: GatewaySpec, *answers: Any) -> AsyncIterator[tuple[grpc.aio.Channel, Tenants, Triton]]:
    """A client's channel to a gateway in front of a stand-in for Triton, which sends the answers."""
    async with (
        serving(*answers) as (triton, url),
        grpc_gateway(deployment_at(url), spec) as (port, tenants, _),
        channel_to(port) as channel,
    ):
        yield channel, tenants, triton


@asynccontextmanager
async def channel_of(keys: Sequence[ApiKey] = (), **config: Any) -> AsyncIterator[grpc.aio.Channel]:
    async with gateway_to(spec_of(*keys, **config)) as (channel, _, _):
        yield channel


def opened(channel: grpc.aio.Channel, method: str, **options: Any) -> Any:
    """A call that sends no message."""
    return channel.stream_unary(f"/{SERVICE}/{method}")(**options)


async def status_of(call: Any) -> tuple[grpc.StatusCode, str]:
    return await asyncio.wait_for(call.code(), PATIENCE_S), await call.details()


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer", "ModelMetadata", "ServerMetadata"])
async def test_a_call_without_a_key_is_refused_before_its_message(method: str) -> None:
    async with channel_of([api_key("alice")]) as channel:
        assert (await status_of(opened(channel, method)))[0] is grpc.StatusCode.UNAUTHENTICATED


async def test_a_message_that_does_not_arrive_or_is_missing_ends_its_call() -> None:
    async with channel_of(body_timeout_s=0.1) as channel:
        call = opened(channel, "ModelInfer")
        assert await status_of(call) == (
            grpc.StatusCode.DEADLINE_EXCEEDED,
            "the message of the call did not arrive within 0.1 s",
        )
    async with channel_of(body_timeout_s=PATIENCE_S) as channel:
        call = opened(channel, "ModelInfer")
        await call.done_writing()
        assert await status_of(call) == (grpc.StatusCode.INVALID_ARGUMENT, "the call has no message")


async def test_open_calls_are_bounded_and_those_that_end_make_room() -> None:
    async with channel_of([api_key("alice")], max_connections=2) as channel:
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


async def test_a_tenant_that_opens_all_calls_that_it_can_leaves_some_for_others() -> None:
    async with channel_of([api_key("alice"), api_key("bob")], max_connections=8) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        calls = [stub.ModelStreamInfer(metadata=ALICE) for _ in range(12)]
        assert sum([await is_refused(call) for call in calls]) == 8
        # grpc reports a write that fails, as one to a refused stream may, as its own internal error.
        assert await status_of(stub.ModelStreamInfer(iter(()), metadata=ALICE)) == (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "4 gRPC calls of this key are open; end some of them",
        )
        bobs = [stub.ModelStreamInfer(metadata=(("x-api-key", "bob"),)) for _ in range(4)]
        assert sum([await is_refused(call) for call in bobs]) == 2


async def is_refused(stream: Any) -> bool:
    """Whether the gateway refuses a stream, and not a request on it."""
    with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        await stream.write(pb.ModelInferRequest(model_name="no model"))
        if await asyncio.wait_for(stream.read(), PATIENCE_S):
            return False
    return True


async def test_a_stream_without_a_request_is_ended_and_one_with_requests_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grpc_stream, "_IDLE_S", 0.2)

    async with gateway_to(spec_of(), None) as (channel, _, triton):
        open_stream = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer
        requests = [pb.ModelInferRequest(model_name="lookahead_bls", id="a")]
        used = open_stream(requests)
        while not triton.num_requests:  # on a busy machine the stream may end before its request has come
            used = used if not used.done() else open_stream(requests)
            await asyncio.sleep(0.01)
        for _ in range(3):
            ended = (grpc.StatusCode.DEADLINE_EXCEEDED, "the stream had no request for 0.2 s; open another one")
            assert await status_of(open_stream()) == ended
        triton.stop("a")
        assert (await status_of(used))[0] is grpc.StatusCode.OK


async def test_each_output_of_a_request_counts_as_a_request() -> None:
    async with channel_of([api_key("alice", max_concurrent_requests=2)]) as channel:
        request = pb.ModelInferRequest(model_name="lookahead_bls", raw_input_contents=[(3).to_bytes(4, "little")])
        request.inputs.add(name="num_return_sequences", datatype="INT32", shape=[1, 1])
        call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request, metadata=ALICE)
        assert "3 choices; each counts as a request, and 2 at once" in (await status_of(call))[1]


# More than gRPC itself buffers on the way.
LONG = np.zeros((1, 4_000_000), np.int32)


async def unread(channel: grpc.aio.Channel, method: str) -> Any:
    """A call whose client sends a request and does not read the response."""
    call = channel.stream_stream(f"/{SERVICE}/{method}", pb.ModelInferRequest.SerializeToString)()
    await call.write(pb.ModelInferRequest(model_name="lookahead_bls"))
    return call


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
async def test_a_request_counts_as_running_until_its_client_has_read_the_response(method: str) -> None:
    async with gateway_to(spec_of(), response(output_ids=LONG)) as (channel, tenants, triton):
        call = await unread(channel, method)
        await until(lambda: triton.num_sent == 1)
        await asyncio.sleep(0.2)
        assert (tenants.num_running, tenants.num_calls) == (1, 1)
        assert len(await call.read()) > LONG.nbytes
        await until(lambda: tenants.num_running == 0)
        await call.done_writing()
        assert (await status_of(call))[0] is grpc.StatusCode.OK
        await until(lambda: tenants.num_calls == 0)


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
def test_a_request_whose_response_is_not_read_ends_at_its_time_limit_and_its_call_stays_open(method: str) -> None:
    async def stays_open(limit_s: int) -> bool:
        async with gateway_to(spec_of(request_timeout_s=limit_s), response(output_ids=LONG)) as (channel, tenants, _):
            call = await unread(channel, method)
            await until(lambda: tenants.num_running == 1)
            await until(lambda: tenants.num_running == 0)
            is_open = tenants.num_calls == 1
            call.cancel()
            await until(lambda: tenants.num_calls == 0)
            return is_open

    # A call whose response has not come at its time limit ends; on a busy machine it may take longer than a second.
    assert any(asyncio.run(stays_open(limit_s)) for limit_s in (1, 10, 60))


async def test_calls_of_a_machine_that_vanished_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_app, "_KEEPALIVE_MS", 200)

    async with (
        grpc_gateway(deployment_of()) as (port, tenants, _),
        relay_to(port) as (relay_port, vanish),
        channel_to(relay_port) as channel,
    ):
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        stream = stub.ModelStreamInfer()
        while not tenants.num_calls:  # on a busy machine the relay may be too slow for a ping
            stream = stream if not stream.done() else stub.ModelStreamInfer()
            await asyncio.sleep(0.01)
        vanish.set()
        await until(lambda: tenants.num_calls == 0)
        stream.cancel()


@asynccontextmanager
async def relay_to(port: int) -> AsyncIterator[tuple[int, asyncio.Event]]:
    """A relay to a port, and an event after which it forwards nothing and leaves its connections open."""
    vanished = asyncio.Event()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner = await asyncio.open_connection("127.0.0.1", port)

        async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            while (data := await source.read(1 << 16)) and not vanished.is_set():
                target.write(data)

        await asyncio.gather(copy(reader, inner[1]), copy(inner[0], writer))

    async with await asyncio.start_server(relay, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], vanished


async def test_health_checks_of_load_balancers_need_no_key() -> None:
    async with gateway_to(spec_of(api_key("alice"))) as (channel, _, triton):
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        ready = await check(b"\n\x03any")
        triton.is_ready = False
        assert [ready, await check(b"")] == [b"\x08\x01", b"\x08\x02"]


async def test_calls_without_a_key_take_no_place_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_app, "_MAX_WITHOUT_KEY", 1)
    monkeypatch.setattr(grpc_app, "_SHORT_S", PATIENCE_S)

    async with channel_of([api_key("alice")], max_connections=1) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        waiting = opened(channel, "ModelReady")
        while (await status_of(stub.ModelReady(pb.ModelReadyRequest(name="x"))))[0] is grpc.StatusCode.OK:
            waiting = waiting if not waiting.done() else opened(channel, "ModelReady")  # until it is open
        assert (await stub.ServerReady(pb.ServerReadyRequest())).ready
        assert (await status_of(stub.ModelStreamInfer(iter(()), metadata=ALICE)))[0] is grpc.StatusCode.OK
        waiting.cancel()
