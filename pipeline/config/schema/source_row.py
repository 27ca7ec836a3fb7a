"""Description of one kind of draft source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pipeline.config.schema.base import Frozen, Strategy

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
