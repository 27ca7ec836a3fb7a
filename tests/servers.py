"""Servers for tests, and the files and processes that they leave."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import psutil

from pipeline.server.processes import MARK, shm_files
from tests.patience import PATIENCE_S

T = TypeVar("T")
# Triton alone, on free ports.
FREE_PORTS = (*(f"server.{name}_port=0" for name in ("http", "grpc", "metrics", "openai")), "server.openai=false")
# Nothing in front of it, and down when it dies.
BARE = ("server.gateway.enabled=false", "server.max_restarts=0")


def processes_of(server_id: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # not ours to look at, or gone
            if process.environ().get(MARK) == server_id:
                found.append(process)
    return found


def left_over(server_id: str) -> list[object]:
    """Processes and shared memory of a server."""
    return [*shm_files(server_id), *processes_of(server_id)]


def check_log(log_path: Path) -> None:
    """Check that nobody lost track of a request: Triton's handlers of gRPC calls, which then use freed memory, or tasks
    of our models."""
    log = log_path.read_text(errors="replace")
    for words in ("[INTERNAL]", "was never retrieved", "was destroyed but it is pending"):
        assert words not in log, log[log.index(words) :][:2000]


def wait_for(found: Callable[[], T | None]) -> T:
    """The first true value that a function returns."""
    deadline = time.monotonic() + PATIENCE_S
    while not (value := found()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return value


def wait_for_guard(server_id: str) -> None:
    """Wait until the guard of a server has checked the models' processes. In the same round, and before, it makes
    shared memory private."""
    region = Path("/dev/shm", f"{server_id}-round")
    region.touch()
    for _ in range(2):
        region.chmod(0o644)
        wake_guard(server_id)
        wait_for(lambda: region.stat().st_mode & 0o077 == 0)
    region.unlink()


def wake_guard(server_id: str) -> None:
    """Let the guard of a server begin a round now, as the end of a child does."""
    for process in processes_of(server_id):
        with suppress(psutil.Error):
            if "pipeline.server.guard" in process.cmdline():
                process.send_signal(signal.SIGCHLD)
