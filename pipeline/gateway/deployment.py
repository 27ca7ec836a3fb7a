"""What stands behind the gateway, exchanged while it serves: new requests go to the new servers, running ones end where
they began."""

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
    """A Triton server and the OpenAI front end that leads to it. num_running: requests that they serve. num_streams:
    calls over the channel that have not ended, with requests or without. known_types: datatypes of the inputs of its
    models, as far as they were asked for."""

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
        """One request, for the length of a block."""
        self.num_running += 1
        try:
            yield
        finally:
            self.num_running -= 1


class Deployments:
    """The current deployment, and earlier ones whose requests still run. Create it in the event loop that uses it."""

    def __init__(self, spec: DeploymentSpec) -> None:
        self.current = create_deployment(spec)
        self._earlier: list[Deployment] = []

    @property
    def num_running_earlier(self) -> int:
        """Requests that run on earlier ones."""
        return sum(deployment.num_running for deployment in self._earlier)

    def exchange(self, spec: DeploymentSpec) -> None:
        """Send new requests elsewhere from now on."""
        self._earlier.append(self.current)
        self.current = create_deployment(spec)

    async def close_idle(self) -> None:
        """Close idle connections to earlier servers. Closing one cancels its streams, whose clients would wait for
        ever."""
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
    """Options of the channel to Triton: no proxy, responses of any length, a quick reconnect after a restart."""
    return [
        ("grpc.enable_http_proxy", 0),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", -1),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
    ]
