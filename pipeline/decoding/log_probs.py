"""Log probabilities of tokens under the target.

They are computed from the raw logits, before temperature, penalties, bans and grammar. So they do not depend on drafts,
and are comparable between requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipeline.decoding.tree import FloatArray, IntArray
from pipeline.errors import RequestError

MAX_TOP = 64


@dataclass(frozen=True, slots=True)
class LogitOptions:
    """Parts of the target's logits that a request returns. log_probs: log probability of each output token. num_top:
    number of alternatives per position, only with log_probs. prompt: both for prompt tokens as well.
    generation_logits, context_logits: whole rows for the output and for the prompt."""

    log_probs: bool = False
    num_top: int = 0
    prompt: bool = False
    generation_logits: bool = False
    context_logits: bool = False

    @property
    def of_output(self) -> bool:
        return self.log_probs or self.generation_logits

    @property
    def of_prompt(self) -> bool:
        return self.context_logits or (self.log_probs and self.prompt)


class TokenLogProb(NamedTuple):
    """Log probability of a token. top_ids, top_values: [num_top] the most probable tokens in its place and their log
    probabilities, best first, ties by the smaller id. row: [vocab] its logits, if requested."""

    value: float
    top_ids: list[int]
    top_values: list[float]
    row: FloatArray | None


class PromptLogits(NamedTuple):
    """What a request returns of the logits after its prompt tokens. log_probs: of prompt tokens 1 .. len - 1, each
    after those before it, if requested. The first token has none. rows: [len][vocab] the logits, if requested."""

    log_probs: list[TokenLogProb]
    rows: list[FloatArray]

    def add(self, rows: Sequence[FloatArray], prompt_ids: IntArray, wanted: LogitOptions) -> None:
        """Add the logits [n][vocab] after the next n prompt tokens."""
        if wanted.log_probs and wanted.prompt:
            tokens = prompt_ids[len(self.log_probs) + 1 :].tolist()
            self.log_probs.extend(token_log_prob(*each, wanted.num_top) for each in zip(rows, tokens, strict=False))
        if wanted.context_logits:
            self.rows.extend(rows)


def token_log_prob(logits: FloatArray, token: int, num_top: int, keep_row: bool = False) -> TokenLogProb:
    """Return the log probability of a token that was chosen from logits [vocab]."""
    log_probs = log_softmax(logits)
    ids = top_ids(log_probs, num_top)
    row = logits.astype(np.float32, copy=True) if keep_row else None
    return TokenLogProb(float(log_probs[token]), ids.tolist(), log_probs[ids].tolist(), row)


def check_logit_options(wanted: LogitOptions) -> None:
    """Raise RequestError if num_top is out of range, or given without log_probs."""
    if not 0 <= wanted.num_top <= MAX_TOP:
        raise RequestError(f"num_top_logprobs is {wanted.num_top}; it must be in 0 .. {MAX_TOP}")
    if wanted.num_top and not wanted.log_probs:
        raise RequestError("num_top_logprobs was sent without return_log_probs; set it to true")


def log_softmax(logits: FloatArray) -> FloatArray:
    """[vocab] float32 log probabilities, computed in float64."""
    shifted = logits.astype(np.float64) - float(logits.max())
    result: FloatArray = (shifted - np.log(np.exp(shifted).sum())).astype(np.float32)
    return result


def top_ids(values: FloatArray, count: int) -> IntArray:
    """[count] indices of the largest values, best first; of equal values the smaller index comes first."""
    if not count:
        return np.empty(0, np.int32)
    count = min(count, len(values))
    edge = np.partition(values, -count)[-count]
    candidates = np.flatnonzero(values >= edge)
    order = np.lexsort((candidates, -values[candidates]))[:count]
    chosen: IntArray = candidates[order].astype(np.int32)
    return chosen
