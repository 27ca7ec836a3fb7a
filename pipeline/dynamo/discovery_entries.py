"""Restores a worker's entries in Dynamo's discovery folder (`server.discovery: file`) after a suspension.

Every Dynamo process deletes entries that were not renewed for ten seconds. After a suspension (SIGSTOP, a laptop's
sleep, a paused virtual machine) that includes entries of running workers, which Dynamo does not write again.
"""

from __future__ import annotations

import asyncio
import glob
import time
from contextlib import suppress
from pathlib import Path

from pipeline.files import partial_path

_PERIOD_S = 0.5
# Delay of a check that indicates a suspension. Without one, missing entries stay removed, as after Dynamo's shutdown.
_LATE_S = 3.0
# Time after a suspension during which entries are restored, because other processes may delete them late.
_RESTORE_S = 30.0


class DiscoveryEntries:
    """Discovery entries of one worker. folder: Dynamo's discovery folder. worker_id: Dynamo's id of the worker.
    pattern: glob pattern of the worker's files."""

    def __init__(self, folder: Path, worker_id: int) -> None:
        self.pattern = f"{glob.escape(str(folder))}/v1/*/*%2F{worker_id:x}"
        self._folder = folder
        self._contents: dict[Path, bytes] = {}
        self._checked_at: float | None = None
        self._restore_until = 0.0

    def check(self, now: float) -> None:
        """Remember new entries, and restore those that are missing after a suspension. now: seconds since 1970, because
        Dynamo compares them with the times of the files. A jump of the clock counts as a suspension."""
        if self._checked_at is not None and not 0 <= now - self._checked_at <= _LATE_S:
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
        """Check periodically until cancelled."""
        while True:
            with suppress(OSError):  # the next check tries again
                self.check(time.time())
            await asyncio.sleep(_PERIOD_S)

    def _write(self, path: Path, content: bytes) -> None:
        """Write an entry atomically, through a file outside the subfolder that other processes watch."""
        partial = partial_path(self._folder / path.name)
        partial.write_bytes(content)
        partial.chmod(0o600)
        path.parent.mkdir(exist_ok=True)
        partial.replace(path)
