"""A worker's entries in the folder by which the processes of a fleet find each other (`server.discovery: file`).

Every process of Dynamo deletes entries that were not renewed for ten seconds. After a suspension (SIGSTOP, a laptop's
sleep, a paused virtual machine) those of running workers are among them, and Dynamo never writes them again.
"""

from __future__ import annotations

import asyncio
import glob
import time
from contextlib import suppress
from pathlib import Path

from pipeline.files import partial_path

_PERIOD_S = 0.5
# A check that is so late shows a suspension. Dynamo's shutdown removes entries too, and these stay removed.
_LATE_S = 3.0
# For how long entries are restored: other processes may delete them a moment after the end of the suspension.
_RESTORE_S = 30.0


class Entries:
    """Keeps the entries of one worker. folder: shared by all processes. worker_id: as Dynamo numbers the worker."""

    def __init__(self, folder: Path, worker_id: int) -> None:
        self.pattern = f"{folder}/v1/*/*%2F{worker_id:x}"
        self._folder = folder
        self._contents: dict[Path, bytes] = {}
        self._checked_at: float | None = None
        self._restore_until = 0.0

    def check(self, now: float) -> None:
        """Note new entries, and write again those that are missing after a suspension. now: seconds since 1970."""
        if self._checked_at is not None and now - self._checked_at > _LATE_S:
            self._restore_until = now + _RESTORE_S
        self._checked_at = now
        for path in map(Path, glob.glob(self.pattern)):
            if path not in self._contents:
                with suppress(FileNotFoundError):
                    self._contents[path] = path.read_bytes()
        if now < self._restore_until:
            for path, content in self._contents.items():
                if not path.exists():
                    self._write(path, content)

    async def keep(self) -> None:
        """Check again and again."""
        while True:
            with suppress(OSError):  # a disk that is full may have room later
                self.check(time.time())
            await asyncio.sleep(_PERIOD_S)

    def _write(self, path: Path, content: bytes) -> None:
        """Write an entry whole: others watch its folder, so it comes there by its name only."""
        partial = partial_path(self._folder / path.name)
        partial.write_bytes(content)
        partial.chmod(0o600)
        path.parent.mkdir(exist_ok=True)
        partial.replace(path)
