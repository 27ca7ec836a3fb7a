"""States of servers that do not run."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pipeline.gateway.spec import TritonSpec
from pipeline.server.state import ServerState

STATE = ServerState(
    server_id="la1",
    guard_pid=1,
    host="127.0.0.1",
    http_port=1,
    grpc_port=2,
    metrics_port=3,
    triton=TritonSpec(http="127.0.0.1:4", grpc="127.0.0.1:5", metrics="127.0.0.1:6", key="secret"),
    repository="/r",
    model="m",
    profile="p",
    started=0.0,
)


def state_of(triton: Mapping[str, str] = MappingProxyType({}), **changes: Any) -> ServerState:
    """A state with these changes. triton: changes of Triton's own addresses."""
    return STATE.model_copy(update={**changes, "triton": STATE.triton.model_copy(update=triton)})
