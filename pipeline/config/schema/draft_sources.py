"""Settings of the draft sources: one class per kind, listed in `source_registry`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipeline.config.schema.base import Frozen, Retrieval


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
