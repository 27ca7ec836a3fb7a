"""From a profile's drafting section to a drafter."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pipeline.config.schema import LookaheadConfig, SourceConfig
from pipeline.decoding.drafter import Drafter
from pipeline.decoding.sources import create_source

# In a server the BLS model keeps what lives across engines; what needs logits or the window lives with the engine.
BLS_KINDS = frozenset({"trie", "prompt"})
ENGINE_KINDS = frozenset({"window", "recycling", "supplied"})


def create_drafter(
    sources: Iterable[SourceConfig],
    lookahead: LookaheadConfig,
    vocab_size: int,
    kinds: Collection[str] = BLS_KINDS | ENGINE_KINDS,
) -> Drafter:
    """A drafter of the configured sources whose kind is among `kinds`."""
    chosen = [source for source in sources if source.kind in kinds]
    return Drafter([create_source(source, lookahead) for source in chosen], vocab_size)
