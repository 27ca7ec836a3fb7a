"""Removes files, entries in etcd and the container that the processes of a server leave behind. Standard library only,
because the guard uses it."""

from __future__ import annotations

import glob
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pipeline.server.watch import status_of

_CLEAN_UP_SECONDS = 30.0


def run_clean_up(command: Sequence[str]) -> None:
    """Remove a container. It is already gone if the server ended normally, which is not an error."""
    if command:
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(command, capture_output=True, timeout=_CLEAN_UP_SECONDS, check=False)


def remove_leftovers(path: Path) -> None:
    """Remove what a file lists, one per line: a pattern of files, or an HTTP URL and after a space the JSON to send
    there."""
    with suppress(OSError):
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("http://"):
                url, _, body = line.partition(" ")
                status_of(url, body.encode())
                continue
            for name in glob.glob(line):
                Path(name).unlink(missing_ok=True)
