"""Kills the worker of a fleet whose run folder is on a full disk, and prints the status of the next request. argv: the
folder, on a small disk. `test_small_machine` runs it."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import httpx

from pipeline.config.folders import folders
from pipeline.dynamo.fleet import openai_url, start_fleet
from pipeline.dynamo.services import WORKER
from pipeline.server.service import find_services
from tests.integration.servers import prepared
from tests.patience import PATIENCE_S
from tests.servers import processes_of, wait_for

_PIECE = bytes(1024)


def fill(folder: Path) -> None:
    """Write until the disk is full."""
    with suppress(OSError), (folder / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(_PIECE)


def main(folder: Path) -> None:
    where = folders()
    fleet = start_fleet(prepared(where, "server.openai=true", "drafting.planner=fixed"), where, folder)
    try:
        fill(folder)
        (worker,) = (state for state in find_services(folder) if state.name.startswith(WORKER))
        for process in processes_of(worker.server_id):
            if process.pid != worker.guard_pid:
                process.kill()
        body = {"model": "tiny-random-llama", "prompt": "a", "max_tokens": 8}

        def status() -> int | None:
            """None while the worker starts again, which takes minutes on a busy machine."""
            answer = httpx.post(f"{openai_url(folder)}/completions", json=body, timeout=PATIENCE_S, trust_env=False)
            return None if answer.status_code == 503 else answer.status_code

        print(wait_for(status))
    finally:
        fleet.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
