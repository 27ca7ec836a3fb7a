"""The section `drafting` of a profile: draft sources and budgets."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from pipeline.config.schema.base import Frozen, Strategy
from pipeline.config.schema.source_registry import (
    SOURCE_ROWS,
    PromptDraftConfig,
    RecyclingDraftConfig,
    SuppliedDraftConfig,
    TrieDraftConfig,
    WindowDraftConfig,
)

if TYPE_CHECKING:
    # Built-in draft sources. Installed packages can add others.
    SourceConfig = TrieDraftConfig | PromptDraftConfig | WindowDraftConfig | RecyclingDraftConfig | SuppliedDraftConfig
else:
    SourceConfig = Annotated[reduce(or_, (row.config for row in SOURCE_ROWS.values())), Field(discriminator="kind")]


class DraftingConfig(Frozen):
    """Draft sources, strategy and budgets."""

    strategy: Strategy = Field("auto", description="Strategy of requests that do not set one.")
    max_draft_tokens: int = Field(
        16, ge=0, le=2048, description="Limit of draft tokens per sequence and step (the paper's decoding length)."
    )
    max_draft_len: int = Field(
        12, ge=0, le=256, description="Limit of the length of drafted paths (the paper's branch length)."
    )
    planner: Literal["fixed", "adaptive"] = Field(
        "fixed",
        description="fixed: always up to the limits above. adaptive: tree size by the measured cost curve, or for "
        "chains to TensorRT-LLM by the measured cost of the calls.",
    )
    keep_learned_minutes: float = Field(
        0.0,
        ge=0,
        le=1440,
        description="Interval in minutes at which a server saves the learned state of its draft sources. It also saves "
        "when it stops. The next server of the model starts with it, under any profile. 0: never.",
    )
    sources: tuple[SourceConfig, ...] = Field(
        (TrieDraftConfig(), PromptDraftConfig()), description="Draft sources that a strategy may choose from."
    )
