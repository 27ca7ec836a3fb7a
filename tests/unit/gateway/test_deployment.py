"""Exchange of the server behind the gateway: new requests go to the new one, running ones finish."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import grpc
import httpx
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from pipeline.gateway import __main__ as gateway
from pipeline.gateway import grpc_app
from pipeline.gateway.deployment import Deployments
from pipeline.gateway.grpc_app import GrpcGateway
from pipeline.gateway.grpc_stream import Call
from pipeline.gateway.spec import GatewaySpec, GatewayStatus, status_path
from pipeline.gateway.tenants import Tenants
from tests.patience import PATIENCE_S
from tests.unit.gateway.gateways import (
    Behind,
    client_of,
    deployment_at,
    deployment_of,
    events,
    grpc_server,
    json_answer,
    spec_of,
    until,
)

CHAT = "/v1/chat/completions"
BODY = {"model": "m", "messages": []}


def test_requests_go_to_the_new_server_and_running_ones_are_counted():
    async def work() -> tuple[list[str], list[int]]:
        deployments = Deployments(deployment_of(1))
        hosts, running = [], []

        def act(request: httpx.Request) -> httpx.Response:
            if not hosts:  # exchanged while the first request runs
                deployments.exchange(deployment_of(2))
            hosts.append(f"{request.url.host}:{request.url.port}")
            running.append(deployments.num_running_earlier)
            return json_answer(200, {"choices": []})

        async with client_of(Behind(act), spec_of(), deployments=deployments) as client:
            for _ in range(2):
                assert (await client.post(CHAT, json=BODY)).status_code == 200
        await deployments.close_idle()
        assert deployments.num_running_earlier == 0
        await deployments.close()
        return hosts, running

    hosts, running = asyncio.run(work())
    assert hosts == ["front:1", "front:2"]
    assert running == [1, 0]


def test_a_stream_goes_on_from_the_server_on_which_it_began():
    async def work() -> bytes:
        deployments = Deployments(deployment_of(1))

        def act(request: httpx.Request) -> httpx.Response:
            deployments.exchange(deployment_of(2))
            return events(b'data: {"choices":[{"index":0,"text":"a"}]}\n\n', b"data: [DONE]\n\n")

        async with client_of(Behind(act), spec_of(), deployments=deployments) as client:
            answer = await client.post(CHAT, json=BODY | {"stream": True})
        await deployments.close()
        return answer.content

    assert asyncio.run(work()).endswith(b"data: [DONE]\n\n")


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
async def gateway_before_two(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    """A client's call to a gateway before the first of two servers, both servers, and a way to exchange them."""
    monkeypatch.setattr(grpc_app, "_CHECK_S", 0.05)
    first, second = Triton("first"), Triton("second")
    adders = [lambda s, t=t: service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(t, s) for t in (first, second)]
    async with grpc_server(adders[0]) as one, grpc_server(adders[1]) as two:
        spec = spec_of()
        deployments = Deployments(deployment_at(one))
        served = GrpcGateway(spec, Tenants((), spec.config), deployments)
        options = [("grpc.enable_http_proxy", 0)]
        async with (
            grpc_server(lambda s: s.add_generic_rpc_handlers((served.handlers(),))) as port,
            grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel,
        ):
            call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer()
            yield call, first, second, deployments, lambda: deployments.exchange(deployment_at(two))
            call.cancel()
        await deployments.close()


def request_named(name: str) -> Any:
    return pb.ModelInferRequest(model_name="lookahead_bls", id=name)


def shown(answer: Any) -> tuple[str, str]:
    assert not answer.error_message
    return answer.infer_response.id, answer.infer_response.model_name


def test_a_stream_of_requests_outlives_its_server(monkeypatch):
    async def work() -> list[tuple[str, str]]:
        async with gateway_before_two(monkeypatch) as (call, first, second, deployments, exchange):
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
            return seen

    assert asyncio.run(work()) == [("b", "second"), ("a", "first")]


def test_a_stream_without_requests_lets_its_server_go_and_is_served_by_the_new_one(monkeypatch):
    async def work() -> tuple[str, str]:
        async with gateway_before_two(monkeypatch) as (call, first, second, deployments, exchange):
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
            return answer

    assert asyncio.run(work()) == ("b", "second")


def test_a_request_to_a_new_server_that_fails_at_once_holds_no_place(monkeypatch):
    finish = Call.finish

    async def work() -> None:
        async with gateway_before_two(monkeypatch) as (call, first, _, deployments, _):

            async def finish_after_the_new_one_has_failed(old: Call) -> None:
                await finish(old)
                while deployments.current.num_streams:
                    await asyncio.sleep(0)  # returns before the failure ends the client's stream

            await call.write(request_named("a"))
            await until(lambda: deployments.current.num_running == 1)
            monkeypatch.setattr(Call, "finish", finish_after_the_new_one_has_failed)
            deployments.exchange(deployment_at(9))  # where nothing listens
            await call.write(request_named("b"))
            first.may_answer.set()
            with pytest.raises(grpc.aio.AioRpcError, match="starting again"):
                async for _ in call:
                    pass
            await until(lambda: not deployments.current.num_running)

    asyncio.run(work())


def test_the_gateway_follows_its_spec_and_says_so(tmp_path: Path):
    async def work() -> list[GatewayStatus]:
        path, spec = tmp_path / "gateway.json", spec_of()
        path.write_text(spec.model_dump_json())
        status_path(path).mkdir()  # cannot be written
        deployments = Deployments(spec.deployment)
        following = asyncio.create_task(gateway._follow_spec(deployments, path))
        statuses: list[GatewayStatus] = []

        def says(number: int) -> bool:
            if not status_path(path).is_file():
                return False
            statuses.append(GatewayStatus.model_validate_json(status_path(path).read_bytes()))
            return statuses[-1].triton_http == f"triton:{number}"

        await asyncio.sleep(0.3)
        status_path(path).rmdir()
        await until(lambda: says(1))
        held = deployments.current.in_use()
        held.__enter__()
        path.write_text("{")  # half written
        await asyncio.sleep(0.3)
        path.write_text(
            GatewaySpec.model_validate(spec.model_dump() | {"deployment": deployment_of(2)}).model_dump_json()
        )
        await until(lambda: says(2))
        assert statuses[-1].num_running_earlier == 1
        held.__exit__(None, None, None)
        await until(lambda: says(2) and statuses[-1].num_running_earlier == 0)
        following.cancel()
        await deployments.close()
        return statuses

    assert asyncio.run(work())[-1] == GatewayStatus(triton_http="triton:2", num_running_earlier=0)


def test_metrics_have_a_port_of_their_own():
    def act(request: httpx.Request) -> httpx.Response:
        return json_answer(200, {"of": request.url.host})

    async def work() -> tuple[httpx.Response, httpx.Response]:
        spec = spec_of()
        tenants, deployments = Tenants((), spec.config), Deployments(spec.deployment)
        served = gateway.HttpGateway(spec, tenants, Behind(act).transport, deployments)
        app = gateway.by_port(served.app(), {9: served.metrics_app()})
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app)) as client:  # type: ignore[arg-type]
            return await client.get("http://gateway:9/metrics"), await client.get("http://gateway:8/metrics")

    metrics, elsewhere = asyncio.run(work())
    assert metrics.json() == {"of": "triton"}
    assert elsewhere.status_code == 404


def test_the_metrics_of_all_replicas_are_one_page():
    pages = {
        "first:4": '# HELP a All.\n# TYPE a counter\na{m="x",v="1"} 1\n# HELP b One.\n# TYPE b gauge\nb 2.5\n',
        "second:4": '# HELP a All.\n# TYPE a counter\na{m="x",v="1"} 3\na{} 4\n# TYPE c gauge\nc{} 5\n',
    }

    def act(request: httpx.Request) -> httpx.Response:
        page = pages.get(f"{request.url.host}:{request.url.port}")
        return httpx.Response(503) if page is None else httpx.Response(200, text=page)

    async def metrics() -> httpx.Response:
        spec = spec_of()
        (triton,) = spec.deployment.tritons
        tritons = [triton.model_copy(update={"metrics": f"{name}:4"}) for name in ("first", "restarting", "second")]
        deployments = Deployments(spec.deployment.model_copy(update={"tritons": tritons}))
        served = gateway.HttpGateway(spec, Tenants((), spec.config), Behind(act).transport, deployments)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(served.metrics_app())) as client:  # type: ignore[arg-type]
            return await client.get("http://gateway:9/metrics")

    assert asyncio.run(metrics()).text.splitlines() == [
        *("# HELP a All.", "# TYPE a counter"),
        *('a{replica="1",m="x",v="1"} 1', 'a{replica="3",m="x",v="1"} 3', 'a{replica="3"} 4'),
        *("# HELP b One.", "# TYPE b gauge", 'b{replica="1"} 2.5'),
        *("# TYPE c gauge", 'c{replica="3"} 5'),
    ]
    pages.clear()
    assert asyncio.run(metrics()).status_code == 503


def test_logs_are_text_or_one_json_object_a_line():
    record = logging.LogRecord("lookahead.gateway", logging.ERROR, "f", 1, "request %s failed", ("a\nb",), None)

    entry = json.loads(gateway._JsonFormatter().format(record))

    assert {name: entry[name] for name in ("level", "target", "message")} == {
        "level": "ERROR",
        "target": "lookahead.gateway",
        "message": "request a\nb failed",
    }


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


def test_grpc_calls_go_to_the_first_triton_server_that_can_be_reached():
    async def work() -> None:
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
        assert await asked() == 1
        first, _ = await ready_server(one)
        await until_async(asked, 0)
        for each in (first, second):
            await each.stop(0)
        assert await deployment.triton() is deployment.grpc[0]
        await deployments.close()

    asyncio.run(work())


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
        async with client_of(Behind(act), spec, deployments=deployments) as client:
            return (await client.get("/health")).status_code

    assert asyncio.run(health()) == 200
    statuses["triton:2"] = 400
    assert asyncio.run(health()) == 400
    statuses |= {"triton:1": 200, "front:1": 404}
    assert asyncio.run(health()) == 503
