"""The process of the gateway: its spec, its metrics and its logs."""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from pipeline.gateway import __main__ as gateway
from pipeline.gateway.deployment import Deployments
from pipeline.gateway.spec import GatewaySpec, GatewayStatus, status_path
from pipeline.gateway.upstream_errors import RESTARTING
from pipeline.server.ports import bind_ports
from pipeline.server.watch import answers
from tests.patience import PATIENCE_S
from tests.processes import running
from tests.servers import wait_for
from tests.unit.gateway.gateways import (
    GENERATE,
    Behind,
    api_key,
    deployment_at,
    deployment_of,
    grpc_server,
    http_gateway,
    json_answer,
    spec_of,
    until,
)

CHAT = "/v1/chat/completions"
BODY = {"model": "m", "messages": []}


async def test_the_gateway_follows_its_spec_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gateway, "_POLL_S", 0.02)

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

    await asyncio.sleep(0.1)
    status_path(path).rmdir()
    await until(lambda: says(1))
    held = deployments.current.in_use()
    held.__enter__()
    path.write_text("{")  # half written
    await asyncio.sleep(0.1)
    path.write_text(GatewaySpec.model_validate(spec.model_dump() | {"deployment": deployment_of(2)}).model_dump_json())
    await until(lambda: says(2))
    assert statuses[-1].num_running_earlier == 1
    held.__exit__(None, None, None)
    await until(lambda: says(2) and statuses[-1].num_running_earlier == 0)
    following.cancel()
    await deployments.close()
    assert statuses[-1] == GatewayStatus(triton_http="triton:2", num_running_earlier=0)


@pytest.mark.parametrize(
    ("host", "keys", "origin", "status", "allowed"),
    [
        ("127.0.0.1", (), "http://localhost:3000", 200, "*"),
        ("127.0.0.1", (), "https://page.example", 403, None),
        ("127.0.0.1", (api_key("alice"),), "https://page.example", 200, "*"),
        ("0.0.0.0", (api_key("alice"),), "https://page.example", 200, "*"),
        ("0.0.0.0", (), "https://page.example", 405, None),
    ],
)
async def test_web_pages_need_a_key_or_this_machine(host, keys, origin, status, allowed):
    """A browser asks with OPTIONS before it sends a page's request, and without a key."""
    server = Behind(lambda request: json_answer(200, {"text_output": "x"}))
    spec = spec_of(*keys).model_copy(update={"host": host, "metrics_port": 9})
    headers = {"origin": origin, "access-control-request-method": "POST", "access-control-request-headers": "x, y"}
    transport = httpx.ASGITransport(gateway._application(spec, http_gateway(server, spec)))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        asked = await client.options(GENERATE, headers=headers)
        metrics = await client.get("http://localhost:9/metrics", headers={"origin": origin})
        key = {"authorization": "Bearer alice"}
        answer = await client.post(GENERATE, headers={"origin": origin, **key}, json={})

    assert asked.status_code == status
    assert asked.headers.get("access-control-allow-headers") == (allowed and "x, y")
    for each in (asked, answer):
        assert each.headers.get("access-control-allow-origin") == allowed
    assert answer.status_code == metrics.status_code == (403 if status == 403 else 200)
    assert "access-control-allow-origin" not in metrics.headers
    if metrics.status_code == 200:
        assert metrics.json() == {"text_output": "x"}  # the page of one server is passed on


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
        served = http_gateway(Behind(act), spec, deployments=deployments)
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


def test_the_gateway_may_open_as_many_files_as_the_system_allows(tmp_path: Path):
    path = tmp_path / "gateway.json"
    path.write_text(spec_of().model_dump_json())
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The shell says when the limit is set, and waits: the gateway may raise it before anybody has looked.
    shell = ["sh", "-c", 'echo; read line; exec "$@"', "sh"]
    words = ["prlimit", f"--nofile=200:{most}", *shell, sys.executable, "-m", "pipeline.gateway", str(path)]
    with running(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (200, most)
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        wait_for(lambda: resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (most, most))


def test_connections_to_the_grpc_port_leave_open_files_for_others(tmp_path: Path):
    path = tmp_path / "gateway.json"
    ports = bind_ports("127.0.0.1", dict.fromkeys(("http_port", "grpc_port", "openai_port", "metrics_port"), 0))
    path.write_text(spec_of().model_copy(update=ports).model_dump_json())
    url = f"http://127.0.0.1:{ports['http_port']}/openapi.json"
    words = ["prlimit", "--nofile=200:200", sys.executable, "-m", "pipeline.gateway", str(path)]
    with running(words) as process, ExitStack() as held:
        wait_for(lambda: answers(url))
        for _ in range(250):
            held.enter_context(socket.create_connection(("127.0.0.1", ports["grpc_port"])))
        wait_for(lambda: len(list(Path(f"/proc/{process.pid}/fd").iterdir())) > 100)
        assert httpx.get(url, timeout=PATIENCE_S).status_code == 200


# The gateway, which waits for answers to requests that run no model for longer than some seconds.
PATIENT = f"""
import sys
from pipeline.gateway import __main__, grpc_app, http_app
grpc_app._SHORT_S = http_app._SHORT_S = {PATIENCE_S}
sys.exit(__main__.main())
"""


async def test_running_requests_finish_after_sigterm(tmp_path: Path):
    has_http, has_grpc, may_answer = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        has_http.set()
        await may_answer.wait()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

    class Triton(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
        async def ServerLive(self, request: Any, context: Any) -> pb.ServerLiveResponse:
            has_grpc.set()
            await may_answer.wait()
            return pb.ServerLiveResponse(live=True)

    add = partial(service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server, Triton())
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as http_server, grpc_server(add) as grpc_port:
        http = f"127.0.0.1:{http_server.sockets[0].getsockname()[1]}"
        spec = spec_of().model_copy(
            update={
                **bind_ports("127.0.0.1", dict.fromkeys(("http_port", "grpc_port", "metrics_port"), 0)),
                "openai_port": None,
                "deployment": deployment_at(grpc_port, http),
            }
        )
        path = tmp_path / "gateway.json"
        path.write_text(spec.model_dump_json())
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", PATIENT, str(path))
        async with (
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{spec.http_port}", timeout=PATIENCE_S) as client,
            grpc.aio.insecure_channel(f"127.0.0.1:{spec.grpc_port}") as channel,
        ):
            live = service_pb2_grpc.GRPCInferenceServiceStub(channel).ServerLive
            by_grpc = asyncio.ensure_future(live(pb.ServerLiveRequest(), wait_for_ready=True, timeout=PATIENCE_S))
            await asyncio.wait_for(has_grpc.wait(), PATIENCE_S)  # gRPC starts first, so wait for HTTP too
            by_http = asyncio.ensure_future(_when_listening(client, "/v2/health/live"))
            await asyncio.wait_for(has_http.wait(), PATIENCE_S)
            process.terminate()
            await _refuses(spec.http_port)
            may_answer.set()
            answers = (await by_http).status_code, (await by_grpc).live
        assert (*answers, await asyncio.wait_for(process.wait(), PATIENCE_S)) == (200, True, 0)


async def test_idle_streams_do_not_keep_the_gateway_after_sigterm(tmp_path: Path):
    path = tmp_path / "gateway.json"
    ports = bind_ports("127.0.0.1", dict.fromkeys(("http_port", "grpc_port", "openai_port", "metrics_port"), 0))
    path.write_text(spec_of().model_copy(update=ports).model_dump_json())
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "pipeline.gateway", str(path))
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{ports['http_port']}") as client:
        await _when_listening(client, "/openapi.json")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{ports['grpc_port']}") as channel:
        stream = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer()
        await stream.write(pb.ModelInferRequest(model_name="none"))
        await stream.read()
        process.terminate()
        assert await stream.details() == RESTARTING  # gRPC's own end has another sentence
        assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0


@pytest.mark.parametrize("name", ["http_port", "grpc_port", "metrics_port"])
def test_a_port_in_use_is_an_error_with_its_reason(tmp_path: Path, name: str):
    ports = bind_ports("127.0.0.1", dict.fromkeys(("http_port", "grpc_port", "openai_port", "metrics_port"), 0))
    path = tmp_path / "gateway.json"
    path.write_text(spec_of().model_copy(update=ports).model_dump_json())

    with socket.create_server(("127.0.0.1", ports[name])):
        ended = subprocess.run([sys.executable, "-m", "pipeline.gateway", str(path)], capture_output=True, text=True)

    assert ended.returncode == 2
    assert ended.stderr == "The gateway cannot listen on 127.0.0.1: [Errno 98] Address already in use.\n"


async def _when_listening(client: httpx.AsyncClient, path: str) -> httpx.Response:
    while True:
        with suppress(httpx.ConnectError):
            return await client.get(path)
        await asyncio.sleep(0.05)


async def _refuses(port: int) -> None:
    """Wait until a port is closed."""
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return
        writer.close()
        await asyncio.sleep(0.05)


def test_logs_are_text_or_one_json_object_a_line():
    record = logging.LogRecord("lookahead.gateway", logging.ERROR, "f", 1, "request %s failed", ("a\nb",), None)

    entry = json.loads(gateway._JsonFormatter().format(record))

    assert {name: entry[name] for name in ("level", "target", "message")} == {
        "level": "ERROR",
        "target": "lookahead.gateway",
        "message": "request a\nb failed",
    }
    assert gateway._TextFormatter().format(record) == r"request a\nb failed"
    assert gateway._TextFormatter().format(logging.makeLogRecord({"msg": "é\x1b[2J\u2028"})) == r"é\x1b[2J\u2028"
