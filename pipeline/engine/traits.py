"""Traits of a served model that verifies drafts: its strategies, limits and tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # so that the models that only pass requests on need not load pydantic
    from pipeline.config.schema import LookaheadConfig

# Speculative mode of an engine that verifies chains.
Mode = Literal["lookahead", "trie", "none"]
# With TensorRT-LLM, a request that names outputs must name these.
REQUIRED_OUTPUTS = ("output_ids", "sequence_length")


@dataclass(frozen=True, slots=True)
class RuntimeLimits:
    """Limits of an engine that verifies chains, as TensorRT-LLM's do. max_seq_len: of the built engine, including
    drafts."""

    max_seq_len: int
    max_num_tokens: int
    max_draft_len: int
    chunked_context: bool

    @property
    def longest_prompt(self) -> int:
        """Maximum number of prompt tokens."""
        longest = self.max_seq_len - 1
        return longest if self.chunked_context else min(longest, self.max_num_tokens)

    @property
    def usable_seq_len(self) -> int:
        """Limit of prompt and output of a request without drafts; the engine reserves max_draft_len tokens."""
        return self.max_seq_len - self.max_draft_len


@dataclass(frozen=True, slots=True)
class TargetTraits:
    """Description of a target model.

    model: name in Triton. strategies: those that a request may choose. keyed_noise: whether the noise depends on seed
    and position alone, so that every step gets the request's seed; otherwise steps get different seeds. max_seq_len:
    limit of prompt and output of a request. limits: of an engine that verifies chains and returns tokens only; None for
    one that verifies trees and has more tensors. mode: speculative mode of an engine with limits. lookahead: W, N and G
    of an instance built for lookahead decoding. guided: whether it applies grammars.
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
