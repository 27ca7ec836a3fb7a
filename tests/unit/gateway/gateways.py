"""Gateways for tests, with a controlled clock and a stand-in for the server."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import httpx

from pipeline.config.schema import ApiKey, GatewayConfig
from pipeline.gateway.deployment import Deployments
from pipeline.gateway.grpc_app import GrpcGateway, channel_options
from pipeline.gateway.http_app import HttpGateway
from pipeline.gateway.spec import DeploymentSpec, GatewaySpec, TritonSpec
from pipeline.gateway.tenants import Tenants
from pipeline.gateway.upstream import Response, Unreachable, UpstreamRequest
from tests.patience import PATIENCE_S

GENERATE = "/v2/models/lookahead_bls/generate"
STREAM = "/v2/models/lookahead_bls/generate_stream"
INFER = "/v2/models/lookahead_bls/infer"
MAX_SEQ_LEN = 100
METADATA = {"inputs": [{"name": n, "datatype": d} for n, d in (("namespace", "BYTES"), ("max_tokens", "INT32"))]}
Handler = Callable[[httpx.Request], httpx.Response]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def api_key(tenant: str, **limits: Any) -> ApiKey:
    """A key that reads as its tenant's name."""
    return ApiKey(tenant=tenant, key_sha256=hashlib.sha256(tenant.encode()).hexdigest(), **limits)


def deployment_of(number: int = 1) -> DeploymentSpec:
    """number: of the server, in its key and its address."""
    return DeploymentSpec(
        tritons=(TritonSpec(http=f"triton:{number}", grpc="triton:2", metrics="triton:4", key="secret"),),
        openai_http=f"front:{number}",
        model="m",
        public_models=("lookahead_bls",),
        tenant_models=("lookahead_bls", "tensorrt_llm_bls"),
        max_seq_len=MAX_SEQ_LEN,
        max_open_requests=68,
    )


def spec_of(*keys: ApiKey, **config: Any) -> GatewaySpec:
    return GatewaySpec(
        host="127.0.0.1",
        http_port=0,
        grpc_port=0,
        metrics_host="127.0.0.1",
        metrics_port=0,
        openai_port=0,
        deployment=deployment_of(),
        api_keys=keys,
        config=GatewayConfig(**config),
    )


class Behind:
    """A server behind a gateway: records requests and sends the given answers, except to the gateway's question for a
    model's metadata, which it answers with `METADATA`, whether the front end is running (is_alive) and whether
    Triton is ready (is_ready, unless it is None)."""

    def __init__(
        self, answer: Handler, is_alive: bool = False, is_ready: Callable[[], bool] | None = lambda: True
    ) -> None:
        self.requests: list[httpx.Request] = []
        self.answer = answer
        self.is_alive = is_alive
        self.is_ready = is_ready

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.method == "GET" and request.url.path == "/v2/models/lookahead_bls":
            return httpx.Response(200, json=METADATA)
        if request.url.path == "/live":
            if not self.is_alive:
                raise Unreachable("refused")
            return json_answer(200, {"status": "live"})
        if self.is_ready is not None and (request.method, request.url.path) == ("GET", "/v2/health/ready"):
            return json_answer(200 if self.is_ready() else 400, {})
        self.requests.append(request)
        return self.answer(request)

    @asynccontextmanager
    async def transport(self, sent: UpstreamRequest) -> AsyncGenerator[Response, None]:
        """In place of `upstream.request`."""
        target = sent.targets[0]
        headers = {**sent.headers, **target.headers, "x-request-id": sent.request_id}
        url = f"http://{target.address}{sent.path}"
        answer = self(httpx.Request(sent.method, url, headers=headers, content=sent.body))
        found = answer if isinstance(answer, httpx.Response) else await answer
        assert isinstance(found.stream, httpx.AsyncByteStream)
        yield Response(found.status_code, dict(found.headers), aiter(found.stream))

    @property
    def body(self) -> Any:
        """JSON of the last request."""
        return json.loads(self.requests[-1].content)


class Pieces(httpx.AsyncByteStream):
    """A response in pieces; an exception among them is raised when it is its turn."""

    def __init__(self, *pieces: bytes | Exception) -> None:
        self._pieces = pieces
        self.is_closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            if isinstance(piece, Exception):
                raise piece
            yield piece

    async def aclose(self) -> None:
        self.is_closed = True


def events(*pieces: bytes | Exception) -> httpx.Response:
    return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=Pieces(*pieces))


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def streamed(**fields: Any) -> httpx.Response:
    """A stream of the front end with one chunk."""
    return events(event(fields), b"data: [DONE]\n\n")


def json_answer(status: int, value: Any) -> httpx.Response:
    return httpx.Response(
        status, headers={"content-type": "application/json"}, stream=Pieces(json.dumps(value).encode())
    )


def http_gateway(
    behind: Behind, spec: GatewaySpec, tenants: Tenants | None = None, deployments: Deployments | None = None
) -> HttpGateway:
    tenants = tenants or Tenants(spec.api_keys, spec.config)
    return HttpGateway(spec, tenants, behind.transport, deployments or Deployments(spec.deployment))


def client_of(
    behind: Behind, spec: GatewaySpec, tenants: Tenants | None = None, deployments: Deployments | None = None
) -> httpx.AsyncClient:
    """A client of a gateway that runs in the test's own event loop."""
    app = http_gateway(behind, spec, tenants, deployments).app()
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway")  # type: ignore[arg-type]


def behind(answer: Any = None) -> Behind:
    """Sends the given responses."""
    return Behind(answer if callable(answer) else lambda request: json_answer(200, {"text_output": "x"}))


def send(server: Behind, method: str, path: str, spec: Any = None, **options: Any) -> httpx.Response:
    async def work() -> httpx.Response:
        async with client_of(server, spec or spec_of()) as client:
            return await client.request(method, path, **options)

    return asyncio.run(work())


@asynccontextmanager
async def grpc_server(add: Any, max_connections: int = 100) -> AsyncIterator[int]:
    server = grpc.aio.server(options=channel_options(1 << 20, max_connections))
    add(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0)


@asynccontextmanager
async def grpc_gateway(
    deployment: DeploymentSpec, spec: GatewaySpec | None = None, tenants: Tenants | None = None
) -> AsyncIterator[tuple[int, Tenants, Deployments]]:
    """The gRPC port of a gateway, its tenants and its deployments."""
    spec = spec or spec_of()
    tenants = tenants or Tenants(spec.api_keys, spec.config)
    deployments = Deployments(deployment)
    served = GrpcGateway(spec, tenants, deployments)
    handlers = served.handlers(), served.health_handlers()
    async with grpc_server(lambda server: server.add_generic_rpc_handlers(handlers)) as port:
        yield port, tenants, deployments
    await deployments.close()


def channel_to(port: int) -> grpc.aio.Channel:
    options = [("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", -1)]
    return grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options)


async def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def deployment_at(port: int | str, http: str = "triton:1") -> DeploymentSpec:
    """A deployment whose Triton server listens at a port, or an address, for gRPC. http: its address for HTTP."""
    deployment, address = deployment_of(), f"127.0.0.1:{port}" if isinstance(port, int) else port
    triton = deployment.tritons[0].model_copy(update={"grpc": address, "http": http})
    return deployment.model_copy(update={"tritons": (triton,)})
