"""The servers behind the gateway, and their exchange at run time: new requests go to the new servers, running requests
stay on the old ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np

from pipeline.gateway.generate_body import STOP, Types
from pipeline.gateway.refusal import Refusal
from pipeline.gateway.spec import TRITON_GRPC_KEY, TRITON_KEY_HEADER, DeploymentSpec
from pipeline.gateway.upstream import Upstream
from pipeline.request_ids import SentId
from pipeline.triton_grpc import TritonGrpc, infer_request

_UNDECIDED = (grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.CONNECTING)


@dataclass(slots=True)
class Deployment:
    """Triton servers and the OpenAI front end that uses them. http, grpc: access to each Triton server. openai: the
    front end, if there is one. known_types: cached datatypes of inputs, by model. num_running: running requests."""

    spec: DeploymentSpec
    http: tuple[Upstream, ...]
    grpc: tuple[TritonGrpc, ...]
    openai: tuple[Upstream, ...]
    known_types: dict[str, Types] = field(default_factory=dict)
    num_running: int = 0

    async def triton(self) -> TritonGrpc:
        """The first Triton server that can be reached over gRPC; the first of all if none can."""
        for each in self.grpc if len(self.grpc) > 1 else ():
            while (state := each.channel.get_state(try_to_connect=True)) in _UNDECIDED:
                await each.channel.wait_for_state_change(state)
            if state is grpc.ChannelConnectivity.READY:
                return each
        return self.grpc[0]

    def lacks_grpc(self) -> bool:
        """Whether no Triton server can be reached over gRPC. After a restart channels connect up to half a second
        later, and fail all calls before that."""
        states = [each.channel.get_state() for each in self.grpc]
        return bool(states) and all(state is grpc.ChannelConnectivity.TRANSIENT_FAILURE for state in states)

    def require_public(self, model: str) -> None:
        """Raise Refusal (404) for a model that clients may not call."""
        public = self.spec.public_models
        if model not in public:
            raise Refusal(404, f"there is no model {model[:80]!r} here; there is {', '.join(public)}")

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Count one running request while the block runs."""
        self.num_running += 1
        try:
            yield
        finally:
            self.num_running -= 1

    def stop(self, model: str, sent_id: SentId) -> None:
        """Stop a request in the background. Asks all servers, because it is not known which one runs the request."""
        if sent_id.suffix:
            for each in self.grpc:
                each.stop(stop_request(model, sent_id.text))

    async def close(self) -> None:
        for each in self.grpc:
            await each.close()


class Deployments:
    """The current deployment, and earlier ones with running requests. Create it in the event loop that uses it."""

    def __init__(self, spec: DeploymentSpec) -> None:
        self.current = create_deployment(spec)
        self._earlier: list[Deployment] = []

    @property
    def num_running_earlier(self) -> int:
        """Number of requests that run on earlier deployments."""
        return sum(deployment.num_running for deployment in self._earlier)

    def replace(self, spec: DeploymentSpec) -> None:
        """Make `spec` the current deployment."""
        self._earlier.append(self.current)
        self.current = create_deployment(spec)

    async def close_idle(self) -> None:
        """Close the channels of earlier deployments without requests."""
        for deployment in [each for each in self._earlier if not each.num_running]:
            self._earlier.remove(deployment)
            await deployment.close()

    async def close(self) -> None:
        for deployment in (*self._earlier, self.current):
            await deployment.close()


def stop_request(model: str, request_id: str) -> Any:
    """A gRPC request that stops the request with an id."""
    return infer_request(model, request_id, {STOP: np.asarray([[True]])})


def create_deployment(spec: DeploymentSpec) -> Deployment:
    """The deployment of a spec. Its channels connect at their first call."""
    return Deployment(
        spec,
        tuple(Upstream(triton.http, {TRITON_KEY_HEADER: triton.key}) for triton in spec.tritons),
        tuple(TritonGrpc(triton.grpc, ((TRITON_GRPC_KEY, triton.key),)) for triton in spec.tritons),
        () if spec.openai_http is None else (Upstream(spec.openai_http, {}),),
    )
