"""Persistence of a drafter's learned state over restarts and profile switches.

Each server of a checkpoint on a machine, such as a replica, writes to a folder of its own and reads the folders of all.
"""

from __future__ import annotations

import logging
import time
from itertools import count
from pathlib import Path
from typing import IO

from pipeline.config.schema import DraftingConfig
from pipeline.decoding.drafting.drafter import Drafter
from pipeline.decoding.drafting.learned_state import STATE
from pipeline.engine.artifact import MANIFEST, Manifest
from pipeline.files import try_lock
from pipeline.triton_models.handover import Handover

_FURTHER = "server-"
logger = logging.getLogger(__name__)


class LearnedStateStore:
    """Loads and saves the learned state of one drafter. No other thread may use the drafter meanwhile."""

    def __init__(
        self,
        drafter: Drafter,
        drafting: DraftingConfig,
        artifact_dir: Path,
        cache_dir: Path,
        name: str,
        instance: str,
    ) -> None:
        """Load the states that the previous server has handed over. Without one of the same checkpoint, and if the
        profile keeps learned state, load the states that servers of the checkpoint have saved, the latest last. name:
        of the drafter; all processes of a model have the same. instance: of the process, unique in its server.
        cache_dir: folder with the learned state of all checkpoints. Nothing is kept if it cannot be written."""
        self._drafter = drafter
        self._name = name
        self._period_s = 60 * drafting.keep_learned_minutes
        self._saved_at = time.monotonic()
        self._handover = Handover(instance)
        manifest = Manifest.model_validate_json((artifact_dir / MANIFEST).read_bytes())
        self._fingerprint = manifest.fingerprint.checkpoint
        self._checkpoint = self._fingerprint.rpartition(":")[2][:32]
        folder = cache_dir / "learned" / self._checkpoint
        if self._period_s:
            try:
                self._folder, self._lock = _own_folder(folder, name)
            except OSError as error:
                self._period_s = 0.0
                logger.warning("Learned state is not kept: %s cannot be written: %s.", folder, error.strerror)
        found, file = self._handover.found, f"{name}{STATE}"
        states = [] if found is None else list(found.glob(f"*/{self._checkpoint}/{file}"))
        if not states and self._period_s:
            states = list(folder.rglob(file))
        for path in sorted(states, key=lambda path: path.stat().st_mtime):
            drafter.load_learned(path.parent, name, self._fingerprint)

    def save(self) -> None:
        """Save now, if the profile keeps learned state."""
        if self._period_s:
            self._save_to(self._folder)
            self._saved_at = time.monotonic()

    def save_if_due(self) -> None:
        """Save if the profile's period has passed or a successor has requested the state."""
        self._handover.save_if_wanted(lambda folder: self._save_to(folder / self._checkpoint))
        if self._period_s and time.monotonic() - self._saved_at >= self._period_s:
            self.save()

    def _save_to(self, folder: Path) -> None:
        self._drafter.save_learned(folder, self._name, self._fingerprint)


def _own_folder(folder: Path, name: str) -> tuple[Path, IO[bytes]]:
    """The first folder for a server of this checkpoint that no running server has locked, and its lock."""
    for number in count(1):
        own = folder if number == 1 else folder / f"{_FURTHER}{number}"
        own.mkdir(parents=True, exist_ok=True)
        lock = (own / f".{name}.lock").open("wb")
        if try_lock(lock):
            return own, lock
        lock.close()
    raise AssertionError("numbers do not end")
