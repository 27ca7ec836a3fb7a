"""The draft sources that a profile may list: their settings, and one row per kind.

Schema, rules, strategies, `decoding.drafting.drafter_factory` and replay read these rows. An installed package adds a
row through an entry point of the group `lookahead.draft_sources` (docs/how-to/add-a-draft-source.md).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Literal

from pydantic import Field

from pipeline.config.schema.base import Frozen, Retrieval, Strategy


class TrieDraftConfig(Frozen):
    """Drafts from the trie of prompts and past outputs (arXiv 2312.12728)."""

    kind: Literal["trie"] = "trie"
    retrieval: Retrieval = Field(
        "hierarchical",
        description="hierarchical: branches merged at shared prefixes. parallel: separate branches. single: the best "
        "branch.",
    )
    branch_length: int = Field(
        12, ge=1, le=64, description="Limit of the length of drafted paths, and of tokens stored per branch."
    )
    max_bytes: int = Field(64 << 20, ge=1 << 16, description="Hard memory bound of the shared trie.")
    snapshot: str | None = Field(
        None,
        min_length=1,
        description="Initial content of the shared trie: a file of `lookahead trie build`, or its URL (fsspec).",
    )


class PromptDraftConfig(Frozen):
    """Drafts from the request's own prompt and output."""

    kind: Literal["prompt"] = "prompt"
    branch_length: int = Field(12, ge=1, le=64, description="Limit of the length of drafted paths.")


class WindowDraftConfig(Frozen):
    """Drafts from the lookahead window and its n-gram pool. W, N, G are settings of the model."""

    kind: Literal["window"] = "window"
    pool_from_prompt: bool = Field(True, description="Seed the pool with the prompt's n-grams.")


class RecyclingDraftConfig(Frozen):
    """Drafts from the top candidates of earlier verify steps (token recycling, arXiv 2408.08696)."""

    kind: Literal["recycling"] = "recycling"
    top_k: int = Field(8, ge=1, le=32, description="Candidates kept per context.")


class SuppliedDraftConfig(Frozen):
    """Drafts in the request: a client's prediction, or the tree of a BLS step."""

    kind: Literal["supplied"] = "supplied"


ENTRY_POINTS = "lookahead.draft_sources"

Side = Literal["bls", "engine"]


@dataclass(frozen=True, slots=True)
class SourceRow:
    """One kind of draft source.

    config: its section in a profile; the default of the field `kind` is the source's name. implementation:
    "module:Class", imported when a drafter is made; the class is called with the config and the largest W, N, G.
    strategies: those that use it. role: sources with the same role are alternatives; of those in a profile, the first
    one in the registry is used. sides: where it runs in a server. drafts_alone: whether a strategy can use it alone;
    false for a source that only forwards drafts. replayable: whether it can draft from text and recorded candidates.
    """

    config: type[Frozen]
    implementation: str
    strategies: frozenset[Strategy]
    role: str
    sides: frozenset[Side]
    drafts_alone: bool = True
    replayable: bool = True

    @property
    def kind(self) -> str:
        return str(self.config.model_fields["kind"].default)


_TEXT_STRATEGIES: frozenset[Strategy] = frozenset({"trie", "hybrid"})
_BLS: frozenset[Side] = frozenset({"bls"})
_ENGINE: frozenset[Side] = frozenset({"engine"})
_SOURCES = "pipeline.decoding.sources"
# Alternatives by role. The trie already contains the request's own text, so source `prompt` would spend nodes on
# duplicates (0.5 - 1 % fewer tokens per step in replay). In a server the engine has `prompt` too, for the steps of a
# call after the one that verifies the BLS model's drafts. Recycling gets candidates from every computed node, the
# window needs nodes of its own: with 11 of 64 nodes for a window a step yielded 3.35 tokens, without 3.45 (28 prompts,
# model in the loop).
_BUILT_IN = (
    SourceRow(TrieDraftConfig, f"{_SOURCES}.trie:TrieSource", _TEXT_STRATEGIES, "text", _BLS),
    SourceRow(PromptDraftConfig, f"{_SOURCES}.prompt:PromptSource", _TEXT_STRATEGIES, "text", _BLS | _ENGINE),
    SourceRow(
        RecyclingDraftConfig, f"{_SOURCES}.recycling:RecyclingSource", frozenset({"hybrid"}), "candidates", _ENGINE
    ),
    SourceRow(
        WindowDraftConfig,
        f"{_SOURCES}.window:WindowSource",
        frozenset({"lookahead", "hybrid"}),
        "candidates",
        _ENGINE,
    ),
    SourceRow(
        SuppliedDraftConfig,
        f"{_SOURCES}.supplied:SuppliedSource",
        _TEXT_STRATEGIES,
        "supplied",
        _BLS | _ENGINE,
        drafts_alone=False,
    ),
)


def _with_installed(rows: tuple[SourceRow, ...]) -> dict[str, SourceRow]:
    """Rows by kind: the given ones, then those of installed packages."""
    installed = tuple(point.load() for point in entry_points(group=ENTRY_POINTS))
    result: dict[str, SourceRow] = {}
    for row in (*rows, *installed):
        if not isinstance(row, SourceRow):
            raise TypeError(f"an entry point of {ENTRY_POINTS} is {row!r}; it must name a SourceRow")
        if row.kind in result:
            raise ValueError(f"two draft sources are called {row.kind!r}; remove one of their packages")
        result[row.kind] = row
    return result


SOURCE_ROWS = _with_installed(_BUILT_IN)


def kinds_on(side: Side) -> frozenset[str]:
    """Kinds of draft sources that run on one side of a server, "bls" or "engine"."""
    return frozenset(kind for kind, row in SOURCE_ROWS.items() if side in row.sides)


def kinds_for(strategy: str, available: Collection[str]) -> frozenset[str]:
    """The available kinds that a strategy uses: for each role the first one in the registry."""
    chosen: dict[str, str] = {}
    for kind, row in SOURCE_ROWS.items():
        if kind in available and strategy in row.strategies:
            chosen.setdefault(row.role, kind)
    return frozenset(chosen.values())


def carries(strategy: str, kinds: Collection[str]) -> bool:
    """Whether a strategy can draft with sources of these kinds."""
    return any(SOURCE_ROWS[kind].drafts_alone for kind in kinds_for(strategy, kinds))
