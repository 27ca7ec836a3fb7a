"""State files of servers and services that several guards change, and services that end with the last of several
servers. Standard library only, because guards import it."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pipeline.files import write_atomically
from pipeline.server.log import LOG, write_end
from pipeline.server.processes import marked_processes

# Time limit for killed processes to end.
_KILL_SECONDS = 10.0


@contextmanager
def locked_state(path: Path) -> Iterator[dict[str, Any]]:
    """The content of a state file, locked against other processes that change it, and written at the end if it has
    changed. Empty, without effect, if the file is missing or damaged. Raises OSError if it cannot be written, or has no
    folder."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        state = load_state(path)
        before = dict(state)
        yield state
        if state and state != before:
            write_atomically(path, json.dumps(state, indent=2) + "\n", private=True)  # it may hold Triton's key
    finally:
        os.close(folder)


def load_state(path: Path) -> dict[str, Any]:
    """Content of a state file; empty if it is missing or damaged."""
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def end_shared_service(path: Path, server_id: str) -> None:
    """End a service if it names the server in `ends_with`, and no other server that runs. path: its state file."""
    with suppress(OSError), locked_state(path) as state:
        if server_id in state.get("ends_with", ()):
            others = [each for each in state["ends_with"] if each != server_id and marked_processes(each)]
            state["ends_with"] = others
            if not others:
                kill_processes_of(state["server_id"])
                write_end(path.with_name(LOG), True, "its servers have ended")


def kill_processes_of(server_id: str) -> None:
    """Kill all processes of a server, except this one, and wait until they have ended. Until then they would count as
    processes of the next server with this id."""
    until = time.monotonic() + _KILL_SECONDS
    while (pids := marked_processes(server_id)) and time.monotonic() < until:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
