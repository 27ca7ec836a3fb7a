"""A script that replaces tritonserver and leaves a child process and shared memory behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline.config.folders import folders
from pipeline.config.resolution import resolve_config
from pipeline.config.schema import GatewayConfig, ServerConfig
from pipeline.engine.backend import backend_of
from pipeline.engine.start_command import MakeCommand
from pipeline.server.guard import GuardSpec
from pipeline.server.server import RunningServer, start_server
from pipeline.server.state import find_server
from tests.patience import PATIENCE_S
from tests.servers import left_over, processes_of, wait_for
from tests.unit.server.fake_machine import write_tritonserver

FREE = ServerConfig(
    http_port=0,
    grpc_port=0,
    metrics_port=0,
    openai_port=0,
    startup_timeout_s=PATIENCE_S,
    max_restarts=0,
    gateway=GatewayConfig(enabled=False),
)


def write(path: Path, body: str = "") -> None:
    write_tritonserver(path, path.parent, f'subprocess.Popen(["sleep", "600"])\n{body}')


def hurry_guards(patch: pytest.MonkeyPatch, **limits: float) -> None:
    """Let the guards of servers and services check more often, with these limits of their `GuardSpec`."""
    limits = {"watch_seconds": 0.05, "degraded_seconds": 0.1, "loading_seconds": 0.2, **limits}
    for room in ("server", "service"):
        patch.setattr(f"pipeline.server.{room}.GuardSpec", partial(GuardSpec, **limits))


def slow_end(seconds: float, text: str) -> str:
    """Code for `write`: after SIGTERM the script sleeps, prints a text and ends."""
    return f"""
import signal
def end(number, frame):
    time.sleep({seconds})
    print({text!r}, flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
"""


def start(
    tmp_path: Path,
    config: ServerConfig = FREE,
    repository: str = "repository",
    make_command: MakeCommand | None = None,
    detach: bool = False,
    **options: Any,
) -> RunningServer:
    """Start a server. detach: let it outlive this process."""
    resolved = resolve_config("tiny-random-llama", "latency", ("backend=torch", "device=cpu"))
    resolved = resolved.with_settings("server", **dict(config))
    folder, run_dir = tmp_path / repository, tmp_path / "run"
    if make_command is None:
        backend = backend_of("torch")
        make_command = backend.make_command(resolved, folder, folders(), run_dir, None, lambda note: None)
    server = start_server(resolved, folder, run_dir, make_command, **options)
    if detach:
        server.release()
    return server


def tritonserver_of(server: RunningServer, fake: Path) -> Any:
    """The process of the script. One that was killed has no command line until the guard has taken notice."""
    for process in processes_of(server.state.server_id):
        with suppress(psutil.Error):
            if str(fake) in process.cmdline():
                return process
    return None


def command_lines(folder: Path) -> list[str]:
    """Command lines that name a folder."""
    commands = (" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"]))
    return [command for command in commands if str(folder) in command]


def in_killed_process(act: Callable[[], object]) -> int:
    """Pid of a process that acts and then ends by SIGKILL. It is forked: to import what it needs takes longer than to
    act."""
    if not (pid := os.fork()):
        try:
            act()
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    return pid


def assert_killed(pid: int) -> None:
    """Wait for the end of a child process."""
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def assert_gone(server: RunningServer) -> None:
    wait_for(lambda: not left_over(server.state.server_id))
    assert find_server(server.run_dir) is None
