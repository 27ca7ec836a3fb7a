"""HTTP requests that end early are stopped at the server, which does not notice that nobody waits for a response."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from pipeline.gateway.deployment import Deployments
from tests.unit.gateway.gateways import (
    GENERATE,
    INFER,
    STREAM,
    Behind,
    api_key,
    client_of,
    deployment_at,
    http_gateway,
    spec_of,
    until,
)
from tests.unit.triton_stand_in import serving

ALICE = {"x-api-key": "alice"}


class Endless:
    """A server whose responses never come. body: JSON of the request."""

    def __init__(self) -> None:
        self.behind = Behind(self._wait)  # type: ignore[arg-type]
        self.has_arrived = asyncio.Event()

    async def _wait(self, request: httpx.Request) -> httpx.Response:
        self.has_arrived.set()
        await asyncio.Event().wait()
        raise AssertionError


async def disconnect(endless: Endless, deployments: Deployments, path: str, body: dict[str, Any]) -> None:
    """Send a request, and disconnect when it has arrived at the server."""
    app = http_gateway(endless.behind, spec_of(api_key("alice")), deployments=deployments).app()
    messages = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await endless.has_arrived.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(name.encode(), value.encode()) for name, value in ALICE.items()]
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
    await app(scope, receive, send)
    assert not sent


async def stopped_and_sent(path: str, body: dict[str, Any]) -> tuple[list[str], str]:
    """The ids that the gateway asked Triton to stop after a client left, and the id of its request."""
    async with serving() as (triton, url):
        deployments, endless = Deployments(deployment_at(url)), Endless()
        await disconnect(endless, deployments, path, body)
        await deployments.close()
        return triton.stopped, endless.behind.body["id"]


@pytest.mark.parametrize("path", [GENERATE, INFER, STREAM])
@pytest.mark.parametrize("chosen", ["", "mine"])
async def test_the_request_of_a_client_that_leaves_is_stopped(path: str, chosen: str) -> None:
    stopped, sent = await stopped_and_sent(path, {"id": chosen, "inputs": []})
    assert stopped == [sent]
    assert sent.startswith(f"alice/{chosen}#")


async def test_a_request_that_takes_too_long_is_stopped() -> None:
    async with serving() as (triton, url):
        deployments, endless = Deployments(deployment_at(url)), Endless()
        spec = spec_of(request_timeout_s=0.1)
        async with client_of(endless.behind, spec, deployments=deployments) as client:
            answer = await client.post(GENERATE, json={})
        await deployments.close()
        assert answer.status_code == 504
        assert triton.stopped == [endless.behind.body["id"]]


@pytest.mark.parametrize(
    ("path", "body"), [(GENERATE, {"stop": True, "id": "mine"}), (INFER, {"inputs": [{"name": "stop"}], "id": "mine"})]
)
async def test_a_request_that_stops_others_has_the_id_that_the_client_chose(path: str, body: dict[str, Any]) -> None:
    assert await stopped_and_sent(path, body) == ([], "alice/mine")


async def test_a_server_that_has_ended_need_not_be_stopped() -> None:
    async with serving() as (_, url):
        pass
    deployments = Deployments(deployment_at(url))
    await disconnect(Endless(), deployments, GENERATE, {})
    await until(lambda: not deployments.current.grpc[0]._leaving)
    await deployments.close()
