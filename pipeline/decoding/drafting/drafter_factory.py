"""Creates a drafter from the drafting section of a profile."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from importlib import import_module

from pipeline.config.schema import SOURCE_ROWS, LookaheadConfig, SourceConfig
from pipeline.decoding.drafting.drafter import Drafter
from pipeline.decoding.sources.base import DraftSource

ALL_KINDS = frozenset(SOURCE_ROWS)


def create_drafter(
    sources: Iterable[SourceConfig],
    lookahead: LookaheadConfig,
    vocab_size: int,
    kinds: Collection[str] = ALL_KINDS,
) -> Drafter:
    """A drafter with those of the configured sources whose kind is in `kinds`. lookahead: the largest W, N, G of a
    request."""
    chosen: list[DraftSource] = []
    for config in sources:
        if config.kind in kinds:
            module, _, name = SOURCE_ROWS[config.kind].implementation.partition(":")
            chosen.append(getattr(import_module(module), name)(config, lookahead))
    return Drafter(chosen, vocab_size)
