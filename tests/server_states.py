"""States of servers that do not run."""

from __future__ import annotations

from typing import Any

from pipeline.server.state import ServerState

STATE = ServerState(
    server_id="la1",
    guard_pid=1,
    host="127.0.0.1",
    http_port=1,
    grpc_port=2,
    metrics_port=3,
    triton_http_port=4,
    triton_grpc_port=5,
    triton_key="secret",
    repository="/r",
    model="m",
    profile="p",
    started=0.0,
)


def state_of(**changes: Any) -> ServerState:
    return STATE.model_copy(update=changes)
