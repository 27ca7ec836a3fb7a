"""Limits of engines that verify chains under one speculative mode, as TensorRT-LLM's do, and W, N and G of a request
to them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pipeline.config.rules import LOOKAHEAD_OFF
from pipeline.config.schema import LookaheadConfig
from pipeline.errors import RequestError

if TYPE_CHECKING:
    from pipeline.decoding.request import GenerationRequest

Mode = Literal["lookahead", "trie", "none"]


def lookahead_for_request(instance: LookaheadConfig, asked: LookaheadConfig | None, prompt_len: int) -> LookaheadConfig:
    """W, N and G to send with a request. instance: those of the engine. asked: the request's own, if any. prompt_len:
    in tokens.

    Raises RequestError if a value exceeds the instance's: the backend would fail the whole batch. With a prompt shorter
    than N - 1 tokens the engine would read before its beginning, so N is lowered to prompt_len + 1.
    """
    lookahead = instance if asked is None else asked
    if lookahead.exceeds(instance):
        raise RequestError(
            f"lookahead (W, N, G) is {lookahead.sizes}; the server runs {instance.sizes}, and no value may be larger"
        )
    if prompt_len >= lookahead.max_ngram_size - 1:
        return lookahead
    return lookahead.model_copy(update={"max_ngram_size": prompt_len + 1}) if prompt_len >= 1 else LOOKAHEAD_OFF


@dataclass(frozen=True, slots=True)
class RuntimeLimits:
    """Limits of an engine at run time. max_seq_len: of the built engine, including drafts."""

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


def not_for_lookahead(request: GenerationRequest) -> Iterator[str]:
    """Yield the names of a request's settings that a lookahead engine would ignore: it decodes greedily, without
    penalties, banned words or biases, and has one end token."""
    from pipeline.decoding.request import SamplingParams  # imports numpy

    sampling, harmless = request.sampling, SamplingParams()
    names = ["repetition_penalty", "presence_penalty", "frequency_penalty", "bad_words"]
    if not sampling.greedy:
        names += ["temperature", "top_k", "top_p", "min_p"]
    for name in names:
        if getattr(sampling, name) != getattr(harmless, name):
            yield name
    if sampling.embedding_bias is not None:
        yield "embedding_bias"
    if request.min_new_tokens and len(request.end_ids) > 1:
        yield "min_tokens (the model ends at several tokens)"
