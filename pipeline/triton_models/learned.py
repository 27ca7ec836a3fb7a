"""Keeping what the drafter of a served model learns, over restarts and profile switches.

Servers of one checkpoint on a machine, such as replicas, write to a folder each and read those of all.
"""

from __future__ import annotations

import fcntl
import time
from itertools import count
from pathlib import Path
from typing import IO

from pipeline.config.schema import DraftingConfig
from pipeline.decoding.drafter import Drafter
from pipeline.decoding.learned_state import STATE
from pipeline.engine.artifact import MANIFEST, Manifest
from pipeline.triton_models.handover import Handover

_FURTHER = "server-"


class LearnedState:
    """Saves and loads what one drafter has learned. A drafter with a trie must not be in use meanwhile."""

    def __init__(
        self, drafter: Drafter, drafting: DraftingConfig, artifact_dir: Path, cache_dir: Path, name: str
    ) -> None:
        """Load what the server before has handed over, or, if the profile keeps it, what servers of the same checkpoint
        have saved, what was saved last having the last word. name: of the drafter among those of a server. cache_dir:
        folder that holds learned state, by checkpoint."""
        self._drafter = drafter
        self._name = name
        self._period_s = 60 * drafting.keep_learned_minutes
        self._saved_at = time.monotonic()
        self._handover = Handover(name)
        manifest = Manifest.model_validate_json((artifact_dir / MANIFEST).read_bytes())
        self._fingerprint = manifest.fingerprint.checkpoint
        folder = cache_dir / "learned" / self._fingerprint.rpartition(":")[2][:32]
        if self._period_s:
            self._folder, self._lock = _own_folder(folder, name)
        if (found := self._handover.found) is not None:
            drafter.load_learned(found, name, self._fingerprint)
        elif self._period_s:
            for saved in _saved_folders(folder, name):
                drafter.load_learned(saved, name, self._fingerprint)

    def save(self) -> None:
        """Save now, if the profile keeps learned state."""
        if self._period_s:
            self._save_to(self._folder)
            self._saved_at = time.monotonic()

    def save_if_due(self) -> None:
        """Save if it is time to, or if another server is about to take over."""
        self._handover.save_if_wanted(self._save_to)
        if self._period_s and time.monotonic() - self._saved_at >= self._period_s:
            self.save()

    def _save_to(self, folder: Path) -> None:
        self._drafter.save_learned(folder, self._name, self._fingerprint)


def _own_folder(folder: Path, name: str) -> tuple[Path, IO[bytes]]:
    """The first folder for a server of this checkpoint that no running one has, and the lock that keeps it."""
    for number in count(1):
        own = folder if number == 1 else folder / f"{_FURTHER}{number}"
        own.mkdir(parents=True, exist_ok=True)
        lock = (own / f".{name}.lock").open("wb")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
        else:
            return own, lock
    raise AssertionError("numbers do not end")


def _saved_folders(folder: Path, name: str) -> list[Path]:
    """The folders in which a drafter of this name has saved, the latest last."""
    paths = [*folder.glob(f"{name}{STATE}"), *folder.glob(f"{_FURTHER}*/{name}{STATE}")]
    return [path.parent for path in sorted(paths, key=lambda path: path.stat().st_mtime)]
