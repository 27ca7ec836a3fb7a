"""Keeping what the drafter of a served model learns, over restarts and profile switches."""

from __future__ import annotations

import time
from pathlib import Path

from pipeline.config.schema import DraftingConfig
from pipeline.decoding.drafter import Drafter
from pipeline.engine.artifact import MANIFEST, Manifest
from pipeline.triton_models.handover import Handover


class LearnedState:
    """Saves and loads for one drafter. A drafter with a trie must not be in use meanwhile."""

    def __init__(
        self, drafter: Drafter, drafting: DraftingConfig, artifact_dir: Path, cache_dir: Path, name: str
    ) -> None:
        """Load what the server before has handed over, or, if the profile keeps it, what earlier servers of the same
        checkpoint have saved. name: of the drafter among those of a server. cache_dir: folder that holds learned state,
        by checkpoint."""
        self._drafter = drafter
        self._name = name
        self._period_s = 60 * drafting.keep_learned_minutes
        self._saved_at = time.monotonic()
        self._handover = Handover(name)
        manifest = Manifest.model_validate_json((artifact_dir / MANIFEST).read_bytes())
        self._fingerprint = manifest.fingerprint.checkpoint
        self._folder = cache_dir / "learned" / self._fingerprint.rpartition(":")[2][:32]
        if (found := self._handover.found) is not None:
            drafter.load_learned(found, name, self._fingerprint)
        elif self._period_s:
            drafter.load_learned(self._folder, name, self._fingerprint)

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
