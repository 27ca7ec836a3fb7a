"""States of servers that do not run, and of ones of which only the guard seems to run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pipeline.gateway.spec import TritonSpec
from pipeline.server.processes import MARK
from pipeline.server.service import ServiceState
from pipeline.server.state import SERVICE_STATE, ServerState, service_dir
from pipeline.server.state import STATE as STATE_FILE

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


@contextmanager
def guarded(
    run_dir: Path, services: Mapping[str, Mapping[str, int]], restarts: int = 0, **state: Any
) -> Iterator[None]:
    """A run folder of a server and services whose guards run. services: ports by name. restarts: of each service.
    state: changes of the server's state."""
    command = [sys.executable, "-S", "-c", "import sys; print(flush=True); sys.stdin.read()"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, MARK: STATE.server_id}
    ) as guard:
        assert guard.stdout is not None
        guard.stdout.readline()
        started = {"guard_pid": guard.pid, "server_id": STATE.server_id}
        run_dir.mkdir(parents=True, exist_ok=True)
        (run_dir / STATE_FILE).write_text(state_of(**started, **state).model_dump_json())
        for name, ports in services.items():
            folder = service_dir(run_dir, name)
            folder.mkdir(parents=True)
            service = ServiceState(
                **started, name=name, host="127.0.0.1", ports=dict(ports), started=0.0, restarts=restarts,
                restart_reason="signal 9" if restarts else "",
            )  # fmt: skip
            (folder / SERVICE_STATE).write_text(service.model_dump_json())
        yield
