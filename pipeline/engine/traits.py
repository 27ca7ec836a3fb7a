"""Traits of a served model that verifies drafts: its strategies, limits and tensors."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.config.schema import LookaheadConfig
from pipeline.engine.chains import Mode, RuntimeLimits

# Outputs that TensorRT-LLM cannot do without: a request that names others but not these fails.
REQUIRED_OUTPUTS = ("output_ids", "sequence_length")


@dataclass(frozen=True, slots=True)
class TargetTraits:
    """Description of a target model.

    model: its name in Triton. strategies: those that a request may choose. keyed_noise: whether the same seed means the
    same noise at a position, so that every step gets the request's seed; else steps get different ones. max_seq_len:
    limit of prompt and output of one request. limits: of an engine that verifies chains and returns tokens only, as
    TensorRT-LLM's do; None for one that verifies trees and has more tensors. mode: the one speculative mode of an
    engine with limits. lookahead: W, N and G of an instance built for lookahead decoding. guided: whether it applies
    grammars.
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
        """Whether it verifies trees and has the additional tensors."""
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
