"""Where drafts come from; see `base` for the contract."""

from __future__ import annotations

from pipeline.config.schema import (
    LookaheadConfig,
    PromptDraftConfig,
    RecyclingDraftConfig,
    SourceConfig,
    SuppliedDraftConfig,
    TrieDraftConfig,
    WindowDraftConfig,
)
from pipeline.decoding.sources.base import DraftSource
from pipeline.decoding.sources.prompt import PromptSource
from pipeline.decoding.sources.recycling import RecyclingSource
from pipeline.decoding.sources.supplied import SuppliedSource
from pipeline.decoding.sources.trie import TrieSource
from pipeline.decoding.sources.window import WindowSource


def create_source(config: SourceConfig, lookahead: LookaheadConfig) -> DraftSource:
    """The draft source that a config describes. lookahead: the largest W, N, G that a request may ask for."""
    match config:
        case TrieDraftConfig():
            return TrieSource(config)
        case PromptDraftConfig():
            return PromptSource(config)
        case WindowDraftConfig():
            return WindowSource(config, lookahead)
        case RecyclingDraftConfig():
            return RecyclingSource(config)
        case SuppliedDraftConfig():
            return SuppliedSource(config)
