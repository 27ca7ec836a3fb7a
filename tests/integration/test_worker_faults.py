"""How often a request runs whose worker fails in the middle: Dynamo's processes and the gateway over a stand-in for
Triton."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from pipeline.config.folders import Folders
from pipeline.dynamo.membership import membership_of
from pipeline.dynamo.model_card import write_card
from pipeline.dynamo.services import front_end_service, worker_service
from pipeline.gateway.deployment import Deployments
from pipeline.gateway.http_app import HttpGateway
from pipeline.gateway.tenants import Tenants
from pipeline.gateway.upstream import request
from pipeline.server.ports import LOOPBACK, free_port
from pipeline.server.service import start_service, wait_until_ready
from tests.integration.servers import prepared
from tests.patience import PATIENCE_S
from tests.server_states import state_of
from tests.unit.dynamo.http_triton import failed, serving, tokens
from tests.unit.gateway.gateways import spec_of

pytestmark = pytest.mark.slow

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"tools": TOOLS},
    {"tools": TOOLS, "tool_choice": "required"},
    {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}},
)
# Of a request: a worker tries once more after a first fault, which may be that of a server that ends.
NUM_RUNS = 2


def test_a_fault_in_the_middle_ends_a_request_with_and_without_tools_alike(
    shared_where: Folders, tmp_path: Path
) -> None:
    served = prepared(shared_where, "server.openai=true", "model.tool_call_parser=hermes")
    model = served.resolved.model.name

    async def work() -> None:
        async with serving(tokens(65, 66), failed("internal error: a bug")) as (triton, url):
            state = state_of({"http": url}, model=model)
            card = write_card(served.artifact, tmp_path)
            fleet = membership_of(served.artifact, card)
            front_end = front_end_service(served.resolved, tmp_path, LOOPBACK, free_port(LOOPBACK), fleet)
            worker = worker_service(1, served.resolved, [state], card, tmp_path, fleet)
            running = [start_service(service, tmp_path) for service in (worker, front_end)]
            try:
                await asyncio.to_thread(wait_until_ready, running)
                spec = spec_of()
                deployment = spec.deployment.model_copy(
                    update={"openai_http": f"{LOOPBACK}:{front_end.ports['http']}", "model": model}
                )
                gateway = HttpGateway(spec, Tenants((), spec.config), request, Deployments(deployment))
                app = httpx.ASGITransport(gateway.app())  # type: ignore[arg-type]
                async with httpx.AsyncClient(transport=app, base_url="http://gateway", timeout=PATIENCE_S) as client:
                    for kind in KINDS:
                        before = len(triton.requests)
                        body = {"model": model, "messages": [{"role": "user", "content": "x"}], "max_tokens": 9, **kind}
                        answer = await client.post("/v1/chat/completions", json=body)
                        assert (answer.status_code, answer.json()["error"]["type"]) == (500, "server_error"), kind
                        assert len(triton.requests) - before == NUM_RUNS, kind
            finally:
                for service in running:
                    service.stop()

    asyncio.run(work())
