"""Traits of a served model that verifies drafts: its strategies, limits and tensors."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.config.schema import LookaheadConfig
from pipeline.engine.chains import Mode, RuntimeLimits

# With TensorRT-LLM, a request that names outputs must name these.
REQUIRED_OUTPUTS = ("output_ids", "sequence_length")


@dataclass(frozen=True, slots=True)
class TargetTraits:
    """Description of a target model.

    model: name in Triton. strategies: those that a request may choose. keyed_noise: whether the noise depends on seed
    and position alone, so that every step gets the request's seed; otherwise steps get different seeds. max_seq_len:
    limit of prompt and output of a request. limits: limits of an engine that verifies chains and returns tokens only,
    as TensorRT-LLM's do; None for one that verifies trees and has more tensors. mode: speculative mode of an engine
    with limits. lookahead: W, N and G of an instance built for lookahead decoding. guided: whether it applies grammars.
    """

    model: str
    strategies: frozenset[str]
    keyed_noise: bool
    max_seq_len: int
    limits: RuntimeLimits | None = None
    mode: Mode | None = None
    lookahead: LookaheadConfig | None = None
    guided: bool = False

    @property
    def extended(self) -> bool:
        """Whether the model verifies trees and has the additional tensors."""
        return self.limits is None

    @property
    def longest_prompt(self) -> int:
        """Maximum length of a prompt that leaves room for one output token."""
        longest = self.max_seq_len - 1
        return longest if self.limits is None else min(longest, self.limits.longest_prompt)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Outputs that a request names: those that the loop reads, and those that must be named."""
        names = (*REQUIRED_OUTPUTS, "total_draft_tokens", "total_accepted_draft_tokens")
        return (*names, "finish_reason", "num_steps") if self.extended else names
