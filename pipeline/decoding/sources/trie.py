"""Drafts from the shared trie of past outputs and the request's own text, in one estimate (arXiv 2312.12728)."""

from __future__ import annotations

from pathlib import Path

from pipeline.config.schema import LookaheadConfig, TrieDraftConfig
from pipeline.decoding.drafting.learned_state import load_arrays, save_arrays
from pipeline.decoding.sources.prompt import PromptSource
from pipeline.decoding.tree import FloatArray
from pipeline.decoding.trie import Trie
from pipeline.decoding.trie.merging import merge_tries
from pipeline.decoding.trie.snapshot import Snapshot, read_snapshot, save_trie
from pipeline.errors import ConfigError

SNAPSHOT, STATE = "trie.snapshot", "trie.state"


class TrieSource(PromptSource):
    """Stores outputs as drafts for all requests of their namespace, at the end of a request and, of long outputs, in
    parts. Only the request itself drafts from its prompt."""

    name = "trie"

    def __init__(self, config: TrieDraftConfig, lookahead: LookaheadConfig | None = None) -> None:
        """Raises ConfigError if max_bytes is too small or the snapshot's branch_length differs, UserError if the
        snapshot cannot be read."""
        super().__init__(config)
        try:
            self.trie = self._shared = Trie(config.branch_length, config.max_bytes)
        except ValueError as error:
            raise ConfigError(f"draft source 'trie': {error}") from error
        if config.snapshot is not None:
            merge_tries(self.trie, [_snapshot(config.snapshot, config.branch_length)])

    def save_learned(self, folder: Path, fingerprint: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        save_trie(self.trie, folder / SNAPSHOT)
        save_arrays(folder / STATE, self._weights(), fingerprint)

    def load_learned(self, folder: Path, fingerprint: str) -> None:
        if (path := folder / SNAPSHOT).exists():
            merge_tries(self.trie, [read_snapshot(path)])  # the file repeats the texts of the configured snapshot
        if (path := folder / STATE).exists():
            loaded = load_arrays(path, self._weights(), fingerprint)
            for name, values in self._weights().items():
                values[:] = loaded[name]

    def _weights(self) -> dict[str, FloatArray]:
        return {"escape_counts": self._estimator.escape_counts}


def _snapshot(path: str, branch_length: int) -> Snapshot:
    snapshot = read_snapshot(path)
    if (found := snapshot.branch_length) != branch_length:
        raise ConfigError(
            f"draft source 'trie': branch_length is {branch_length}, but {found} in the snapshot {path}. "
            f"Set branch_length: {found}, or build it again with --branch-length {branch_length}."
        )
    return snapshot
