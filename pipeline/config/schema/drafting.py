"""The section `drafting` of a profile: who drafts and how much."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pipeline.config.schema.base import Frozen, Retrieval, Strategy


class TrieDraftConfig(Frozen):
    """Drafts from the trie of prompts and past outputs (arXiv 2312.12728)."""

    kind: Literal["trie"] = "trie"
    retrieval: Retrieval = Field(
        "hierarchical", description="Merged branches with shared prefixes, separate branches, or the best branch alone."
    )
    branch_length: int = Field(12, ge=1, le=64, description="Longest drafted path; tokens stored per branch.")
    max_bytes: int = Field(64 << 20, ge=1 << 16, description="Hard memory bound of the shared trie.")
    snapshot: str | None = Field(
        None, min_length=1, description="What the shared trie starts with: a file that `lookahead trie build` made."
    )


class PromptDraftConfig(Frozen):
    """Drafts from the request's own prompt and output."""

    kind: Literal["prompt"] = "prompt"
    branch_length: int = Field(12, ge=1, le=64, description="Longest drafted path.")


class WindowDraftConfig(Frozen):
    """Drafts from the lookahead window and its n-gram pool; W, N, G stand with the model."""

    kind: Literal["window"] = "window"
    pool_from_prompt: bool = Field(True, description="Seed the pool with the prompt's n-grams.")


class RecyclingDraftConfig(Frozen):
    """Drafts from the top candidates of earlier verify steps (token recycling, arXiv 2408.08696)."""

    kind: Literal["recycling"] = "recycling"
    top_k: int = Field(8, ge=1, le=32, description="Candidates kept per context.")


class SuppliedDraftConfig(Frozen):
    """Drafts that come with the request: a client's prediction, or the tree that a BLS step sends."""

    kind: Literal["supplied"] = "supplied"


SourceConfig = Annotated[
    TrieDraftConfig | PromptDraftConfig | WindowDraftConfig | RecyclingDraftConfig | SuppliedDraftConfig,
    Field(discriminator="kind"),
]


class DraftingConfig(Frozen):
    """Who drafts and how much."""

    strategy: Strategy = Field("auto", description="Used when a request does not say.")
    max_draft_tokens: int = Field(16, ge=0, le=2048, description="Nodes per sequence and step (decoding_length).")
    max_draft_len: int = Field(12, ge=0, le=256, description="Longest path per step (branch_length).")
    planner: Literal["fixed", "adaptive"] = Field(
        "fixed",
        description="fixed: always up to the limits above. adaptive: as many as the measured cost curve repays, or for "
        "chains to TensorRT-LLM what the calls are seen to cost.",
    )
    sources: tuple[SourceConfig, ...] = Field(
        (TrieDraftConfig(), PromptDraftConfig()), description="Draft sources that a strategy may choose from."
    )
