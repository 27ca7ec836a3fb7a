"""What the BLS loop must know of the models that verify: which strategies they have, and what they tell and take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pipeline.config.schema import ResolvedConfig
from pipeline.engine.tensorrt_llm.case import Case
from pipeline.engine.tensorrt_llm.instance import LOOKAHEAD_MODEL, TARGET_MODEL
from pipeline.engine.tensorrt_llm.speculation import Mode, RuntimeLimits, Triple, modes_of, triple_of
from pipeline.triton_models.tensors import Array, Tensors

# Outputs that TensorRT-LLM cannot do without: a request that names others but not these fails.
REQUIRED_OUTPUTS = ("output_ids", "sequence_length")
_STRATEGIES: dict[Mode, frozenset[str]] = {
    "none": frozenset({"none"}),
    "trie": frozenset({"none", "trie"}),
    "lookahead": frozenset({"none", "lookahead"}),
}


class Target(Protocol):
    """A model such as `tensorrt_llm`, called from the BLS model."""

    async def call(self, tensors: Mapping[str, Array], outputs: Sequence[str], request_id: str) -> Tensors:
        """The response to one request; cancelling it cancels the request. Raises RequestError with the target's words
        if it refuses.

        One response, never a stream: Triton's Python backend corrupts its memory, or comes to a standstill, when
        several threads of a model read streams of other models (docs/decisions/010)."""


@dataclass(frozen=True, slots=True)
class TargetTraits:
    """One model that verifies.

    model: its name in Triton. strategies: what a request may ask of it. keyed_noise: the same seed means the same noise
    at a position, so that every step gets the request's seed; else steps get different ones. max_seq_len: room for
    prompt and output of one request. limits: of an engine of TensorRT-LLM,
    which takes chains and tells no more than tokens; None for the torch engine, which takes trees and has more tensors.
    lookahead: W, N and G of an instance built for lookahead decoding."""

    model: str
    strategies: frozenset[str]
    keyed_noise: bool
    max_seq_len: int
    limits: RuntimeLimits | None = None
    lookahead: Triple | None = None

    @property
    def extended(self) -> bool:
        """Whether it has the torch engine's tensors."""
        return self.limits is None

    @property
    def longest_prompt(self) -> int:
        """Tokens of the longest prompt that it can answer with at least one."""
        longest = self.max_seq_len - 1
        return longest if self.limits is None else min(longest, self.limits.longest_prompt)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Outputs of the target that the loop reads, and those that every request must name."""
        names = (*REQUIRED_OUTPUTS, "total_draft_tokens", "total_accepted_draft_tokens")
        return (*names, "finish_reason", "num_steps") if self.extended else names


def traits_of(resolved: ResolvedConfig) -> tuple[TargetTraits, ...]:
    """The models that a config serves: one, or the engine for external drafts and the one for lookahead decoding."""
    profile = resolved.profile
    if resolved.backend == "torch" and not profile.engine.strict_tensorrt_llm:
        return (
            TargetTraits(
                model=TARGET_MODEL,
                strategies=frozenset({"none", "lookahead", "trie", "hybrid"}),
                keyed_noise=True,
                max_seq_len=profile.engine.max_seq_len,
            ),
        )
    models = (TARGET_MODEL, LOOKAHEAD_MODEL)
    return tuple(
        _tensorrt_llm_traits(resolved, mode, model)
        for mode, model in zip(modes_of(resolved), models, strict=False)  # most configs have one mode
    )


def _tensorrt_llm_traits(resolved: ResolvedConfig, mode: Mode, model: str) -> TargetTraits:
    limits = Case(resolved, None).limits(mode)
    return TargetTraits(
        model=model,
        strategies=_STRATEGIES[mode],
        keyed_noise=resolved.backend == "torch",
        max_seq_len=limits.usable_seq_len,
        limits=limits,
        lookahead=triple_of(resolved.lookahead) if mode == "lookahead" else None,
    )
