"""An engine that verifies chains under one speculative mode, as TensorRT-LLM's do: what it takes at run time, what of
W, N and G a request may ask for, and how a request's length bounds its drafts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from pipeline.config.schema import LookaheadConfig
from pipeline.errors import RequestError

if TYPE_CHECKING:
    from pipeline.decoding.request import GenerationRequest

Mode = Literal["lookahead", "trie", "none"]


class Triple(NamedTuple):
    """W, N and G: window_size columns, n-grams of ngram_size tokens, verification_set_size candidates per step."""

    window_size: int
    ngram_size: int
    verification_set_size: int


# Plain decoding on a lookahead engine.
AUTOREGRESSIVE = Triple(1, 1, 0)


def triple_of(config: LookaheadConfig) -> Triple:
    return Triple(config.max_window_size, config.max_ngram_size, config.max_verification_set_size)


def triple_for_request(instance: Triple, asked: LookaheadConfig | None, prompt_len: int) -> Triple:
    """The triple to send with a request, given what it asks for and its prompt's length in tokens.

    The backend checks none of this before a step runs, and a wrong triple then fails the whole batch. Raises
    RequestError for more than the instance has. A prompt shorter than N - 1 tokens would make the engine read before
    its beginning, so N is lowered to prompt_len + 1."""
    triple = instance if asked is None else triple_of(asked)
    if any(mine > limit for mine, limit in zip(triple, instance, strict=True)):
        raise RequestError(
            f"lookahead (W, N, G) is {tuple(triple)}; the server runs {tuple(instance)}, and no value may be larger"
        )
    if prompt_len >= triple.ngram_size - 1:
        return triple
    return triple._replace(ngram_size=prompt_len + 1) if prompt_len >= 1 else AUTOREGRESSIVE


@dataclass(frozen=True, slots=True)
class RuntimeLimits:
    """What an engine takes at run time. max_seq_len: as in the built engine, drafts included."""

    max_seq_len: int
    max_num_tokens: int
    max_draft_len: int
    chunked_context: bool

    @property
    def longest_prompt(self) -> int:
        """Tokens of the longest prompt; a longer one is an error."""
        longest = self.max_seq_len - 1
        return longest if self.chunked_context else min(longest, self.max_num_tokens)

    @property
    def usable_seq_len(self) -> int:
        """Prompt and output of a request that sends no drafts of its own: the engine keeps room for max_draft_len."""
        return self.max_seq_len - self.max_draft_len

    def output_room(self, prompt_len: int, num_drafts: int) -> int:
        """Output tokens that fit behind a prompt. num_drafts: that the request carries; 0 reserves max_draft_len."""
        return max(0, self.max_seq_len - prompt_len - (num_drafts or self.max_draft_len))


class ExternalStep(NamedTuple):
    """One call to an engine for external drafts. num_drafts: how many of the chain to send; 0: leave the tensor out.
    request_output_len: what to ask for."""

    num_drafts: int
    request_output_len: int


def external_step(limits: RuntimeLimits, chain_len: int, context_len: int, remaining: int, chunk: int) -> ExternalStep:
    """Cut a drafted chain to what the engine verifies whole.

    context_len: prompt and output so far. remaining: tokens still wanted, at least 1. chunk: tokens to decode plainly
    where there is no draft. A request with drafts ends after one step with at most num_drafts + 1 new tokens; drafts
    beyond a limit would be an error or be dropped unseen."""
    fits = min(
        chain_len,
        limits.max_draft_len,
        remaining - 1,
        limits.longest_prompt - context_len,
        (limits.max_seq_len - context_len - 1) // 2,  # the drafts, their reserve and one token more
    )
    if fits >= 1:
        return ExternalStep(fits, fits + 1)
    return ExternalStep(0, max(1, min(chunk, remaining, limits.output_room(context_len, 0))))


def not_for_lookahead(request: GenerationRequest) -> Iterator[str]:
    """Names of a request's settings that a lookahead engine would not apply: it decodes greedily, without penalties,
    banned words or biases, and knows one end token."""
    from pipeline.decoding.request import SamplingParams  # brings numpy, which settings do without

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
