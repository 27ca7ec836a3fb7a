"""What the pipeline must know of one kind of draft source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pipeline.config.schema.base import Frozen, Strategy

Side = Literal["bls", "engine"]


@dataclass(frozen=True, slots=True)
class SourceRow:
    """One kind of draft source.

    config: its section in a profile; the default of the field `kind` names the source. implementation:
    "module:Class", imported when a drafter is made; the class is called with the config and the largest W, N, G.
    strategies: under which it takes part. role: sources of one role are alternatives; of those that a profile lists,
    the first one in the registry's order takes part. sides: where it lives in a server. drafts_alone: a strategy can
    rest on it, as it drafts without being given drafts. replayable: it can draft from text and recorded candidates.
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
