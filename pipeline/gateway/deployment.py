"""The servers behind the gateway, and their exchange at run time: new requests go to the new servers, running requests
stay on the old ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from tritonclient.grpc import service_pb2_grpc

from pipeline.gateway.input_types import Types
from pipeline.gateway.spec import TRITON_GRPC_KEY, TRITON_KEY_HEADER, DeploymentSpec
from pipeline.gateway.upstream import Upstream


@dataclass(slots=True)
class Deployment:
    """A Triton server and the OpenAI front end that uses it. channel, stub, metadata: gRPC access to Triton.
    known_types: cached datatypes of inputs, by model. num_running: running requests. num_streams: open gRPC streams,
    also those without running requests."""

    spec: DeploymentSpec
    triton: Upstream
    openai: Upstream | None
    channel: grpc.aio.Channel
    stub: Any
    metadata: tuple[tuple[str, str], ...]
    known_types: dict[str, Types]
    num_running: int = 0
    num_streams: int = 0

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Count one running request while the block runs."""
        self.num_running += 1
        try:
            yield
        finally:
            self.num_running -= 1


class Deployments:
    """The current deployment, and earlier ones with running requests. Create it in the event loop that uses it."""

    def __init__(self, spec: DeploymentSpec) -> None:
        self.current = create_deployment(spec)
        self._earlier: list[Deployment] = []

    @property
    def num_running_earlier(self) -> int:
        """Number of requests that run on earlier deployments."""
        return sum(deployment.num_running for deployment in self._earlier)

    def exchange(self, spec: DeploymentSpec) -> None:
        """Make `spec` the current deployment."""
        self._earlier.append(self.current)
        self.current = create_deployment(spec)

    async def close_idle(self) -> None:
        """Close the channels of earlier deployments without requests and streams. Closing a channel cancels its streams
        without notice to the clients."""
        for deployment in [each for each in self._earlier if not (each.num_running or each.num_streams)]:
            self._earlier.remove(deployment)
            await deployment.channel.close()

    async def close(self) -> None:
        for deployment in (*self._earlier, self.current):
            await deployment.channel.close()


def create_deployment(spec: DeploymentSpec) -> Deployment:
    channel = grpc.aio.insecure_channel(spec.triton_grpc, options=_channel_options())
    return Deployment(
        spec,
        Upstream(spec.triton_http, {TRITON_KEY_HEADER: spec.triton_key}),
        None if spec.openai_http is None else Upstream(spec.openai_http, {}),
        channel,
        service_pb2_grpc.GRPCInferenceServiceStub(channel),
        ((TRITON_GRPC_KEY, spec.triton_key),),
        {},
    )


def _channel_options() -> list[tuple[str, int]]:
    """gRPC options of the channel to Triton: no proxy, messages of any length, fast reconnection after a restart."""
    return [
        ("grpc.enable_http_proxy", 0),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", -1),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
    ]
