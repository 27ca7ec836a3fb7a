"""What the BLS loop must know of the model that verifies: which strategies it has, and what it tells and takes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pipeline.config.schema import ResolvedConfig
from pipeline.errors import RequestError
from pipeline.serving.tensors import Array, Tensors


class Target(Protocol):
    """The model `tensorrt_llm`, called from the BLS model."""

    def stream(
        self, tensors: Mapping[str, Array], outputs: Sequence[str], request_id: str
    ) -> AsyncGenerator[Tensors, None]:
        """The responses to one request as they come, as output tensors; closing it early cancels the request. Raises
        RequestError with the target's words if it refuses."""


@dataclass(frozen=True, slots=True)
class TargetTraits:
    """strategies: what a request may ask for. auto: what "auto" stands for. trees: takes `draft_parents`, else one
    chain. extended: has the torch engine's optional tensors. keyed_noise: the same seed means the same noise at a
    position, so that every step gets the request's seed; else steps get different ones."""

    strategies: frozenset[str]
    auto: str
    trees: bool
    extended: bool
    keyed_noise: bool

    @property
    def outputs(self) -> tuple[str, ...]:
        """Outputs of the target that the loop reads."""
        drafts = ("total_draft_tokens", "total_accepted_draft_tokens")
        return ("output_ids", *drafts, "finish_reason") if self.extended else ("output_ids", *drafts)

    def choose(self, strategy: str) -> str:
        """The strategy in effect. Raises RequestError if this engine does not have it."""
        if strategy == "auto":
            return self.auto
        if strategy not in self.strategies:
            raise RequestError(
                f"strategy is {strategy!r}; this engine offers {', '.join(sorted(self.strategies))} and auto"
            )
        return strategy


TORCH = TargetTraits(
    strategies=frozenset({"none", "lookahead", "trie", "hybrid"}),
    auto="hybrid",
    trees=True,
    extended=True,
    keyed_noise=True,
)


def traits_of(resolved: ResolvedConfig) -> TargetTraits:
    """Traits of the engine that a config builds."""
    if resolved.backend == "torch":
        return TORCH
    strategies = {
        "none": frozenset({"none"}),
        "lookahead": frozenset({"lookahead"}),
        "trie": frozenset({"none", "trie"}),
        "both": frozenset({"none", "lookahead", "trie"}),
    }[resolved.profile.tensorrt_llm.speculation]
    auto = next(word for word in ("lookahead", "trie", "none") if word in strategies)
    return TargetTraits(strategies, auto, trees=False, extended=False, keyed_noise=False)
