"""Servers as tests start them, and what they leave behind."""

from __future__ import annotations

from contextlib import suppress

import psutil

from pipeline.server.guard import shm_files
from pipeline.server.processes import MARK

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
