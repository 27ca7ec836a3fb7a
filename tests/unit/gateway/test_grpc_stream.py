"""Streams over gRPC whose client leaves, and ids of their requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from pipeline.gateway import grpc_stream
from pipeline.gateway.deployment import Deployments
from pipeline.gateway.grpc_app import GrpcGateway
from pipeline.gateway.tenants import Tenants
from pipeline.request_ids import chosen_id
from tests.patience import PATIENCE_S
from tests.unit.gateway.gateways import deployment_at, grpc_server, spec_of
from tests.unit.triton_stand_in import Triton, response, serving

IDS = np.asarray([[1]], np.int32)
DIRECT = [("grpc.enable_http_proxy", 0)]


@asynccontextmanager
async def stream_to(*answers: Any) -> AsyncIterator[tuple[Any, Triton]]:
    """A client's stream through a gateway to a stand-in for Triton, which sends the answers to its first request."""
    async with serving(*answers) as (triton, url):
        spec, deployments = spec_of(), Deployments(deployment_at(int(url.rpartition(":")[2])))
        served = GrpcGateway(spec, Tenants((), spec.config), deployments)
        async with (
            grpc_server(lambda server: server.add_generic_rpc_handlers((served.handlers(),))) as port,
            grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=DIRECT) as channel,
        ):
            yield service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer, triton
        await deployments.close()


def request(request_id: str, model: str = "lookahead_bls") -> pb.ModelInferRequest:
    return pb.ModelInferRequest(model_name=model, id=request_id)


@pytest.mark.parametrize("request_id", ["mine", "", "a#0123456789abcdef"])
def test_a_client_gets_its_own_id_back_and_the_server_one_that_no_other_has(request_id: str) -> None:
    async def ask() -> tuple[list[str], str]:
        answer = response(output_ids=IDS)
        async with stream_to(answer) as (stream, triton):
            found = [answer.infer_response.id async for answer in stream([request(request_id)])]
            return found, triton.requests[0].id

    found, sent = asyncio.run(ask())
    assert found == [request_id]
    assert sent != request_id
    assert chosen_id(sent) == request_id


@pytest.mark.parametrize("obeys", [True, False])
def test_requests_of_a_client_that_leaves_are_stopped_and_cancelled_only_if_they_go_on(monkeypatch, obeys) -> None:
    monkeypatch.setattr(grpc_stream, "_CLOSE_S", PATIENCE_S if obeys else 0.2)

    async def leave() -> Triton:
        async with stream_to(response(output_ids=IDS), None, response()) as (stream, triton):
            triton.obeys = obeys
            call = stream([request("mine")])
            await call.read()
            call.cancel()
            await asyncio.wait_for((triton.was_read if obeys else triton.was_cancelled).wait(), PATIENCE_S)
            return triton

    triton = asyncio.run(leave())
    assert triton.stopped == [triton.requests[0].id]
    assert (triton.was_read.is_set(), triton.was_cancelled.is_set()) == (obeys, not obeys)


def test_a_clients_own_stop_has_the_id_that_it_chose() -> None:
    async def stop() -> Triton:
        async with stream_to() as (stream, triton):
            asked = request("mine")
            asked.inputs.add(name="stop", datatype="BOOL", shape=[1, 1])
            asked.raw_input_contents.append(b"\x01")
            assert [answer async for answer in stream([asked])] == []
            return triton

    assert asyncio.run(stop()).stopped == ["mine"]
