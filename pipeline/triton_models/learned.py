"""Keeping what the drafter of a served model learns, over restarts and profile switches."""

from __future__ import annotations

import time
from pathlib import Path

from pipeline.config.schema import DraftingConfig
from pipeline.decoding.drafter import Drafter
from pipeline.engine.artifact import MANIFEST, Manifest


class LearnedState:
    """Saves and loads for one drafter. A drafter with a trie must not be in use meanwhile."""

    def __init__(
        self, drafter: Drafter, drafting: DraftingConfig, artifact_dir: Path, cache_dir: Path, name: str
    ) -> None:
        """Load what earlier servers of the same checkpoint have saved, if the profile keeps it. name: of the drafter
        among those of a server. cache_dir: folder that holds learned state, by checkpoint."""
        self._drafter = drafter
        self._name = name
        self._period_s = 60 * drafting.keep_learned_minutes
        self._saved_at = time.monotonic()
        if self._period_s:
            manifest = Manifest.model_validate_json((artifact_dir / MANIFEST).read_bytes())
            self._fingerprint = manifest.fingerprint.checkpoint
            self._folder = cache_dir / "learned" / self._fingerprint.rpartition(":")[2][:32]
            drafter.load_learned(self._folder, name, self._fingerprint)

    def save(self) -> None:
        """Save now, if the profile keeps learned state."""
        if self._period_s:
            self._drafter.save_learned(self._folder, self._name, self._fingerprint)
            self._saved_at = time.monotonic()

    def save_if_due(self) -> None:
        if self._period_s and time.monotonic() - self._saved_at >= self._period_s:
            self.save()
