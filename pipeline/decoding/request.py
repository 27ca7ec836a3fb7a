"""A request and the result of one step: the plain values that sessions, sources and engines exchange."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import numpy as np

from pipeline.decoding.grammar.guide import Guide
from pipeline.decoding.tree import DraftTree, FloatArray, IntArray


class FinishReason(str, Enum):
    """Why a generation ended."""

    END_TOKEN = "end_token"
    STOP_WORDS = "stop_words"
    LENGTH = "length"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the target's logits become a token. The defaults are greedy decoding.

    temperature: 0 is greedy. top_k: 0 is off. top_p: 1 is off. min_p: 0 is off. seed: key of the noise.
    repetition_penalty counts prompt and output; presence and frequency penalties count the tokens from
    `prompt_ignore_length` on, as in TensorRT-LLM. bad_words: token sequences whose last token is never completed.
    embedding_bias: [vocab] added to the logits, or None.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    prompt_ignore_length: int = 0
    bad_words: tuple[tuple[int, ...], ...] = ()
    embedding_bias: FloatArray | None = field(default=None, compare=False)
    seed: int = 0

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0 or self.top_k == 1


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One request.

    prompt_ids: [prompt_len]. end_ids: tokens that end the output; banned among the first min_new_tokens. late_ids:
    further tokens banned there, which do not end the output. stop_sequences: token sequences that end the output; like
    an end token they stay in the output ids but not in the text. num_resumed_tokens: number of tokens at the end of
    prompt_ids that an earlier run has generated; max_new_tokens, min_new_tokens, stop_sequences and guide count them as
    output. guide: format that the output must match, if any.
    """

    request_id: str
    prompt_ids: IntArray
    max_new_tokens: int
    min_new_tokens: int = 0
    end_ids: frozenset[int] = frozenset()
    late_ids: frozenset[int] = frozenset()
    stop_sequences: tuple[tuple[int, ...], ...] = ()
    sampling: SamplingParams = SamplingParams()
    namespace: str = ""
    num_resumed_tokens: int = 0
    guide: Guide | None = None


class StepResult(NamedTuple):
    """Result of one verify step of one sequence.

    context: [len] prompt and output before the step. tree: the tree that was verified. nodes: its accepted path.
    token_ids: the emitted tokens, `len(nodes) + 1`, the last one being the target's own (bonus or recovered) token;
    more if the step stands for several without drafts.
    choices: [n + 1] greedy choice of the target after the root (row 0) and after node i (row i + 1), or None if the
    target does not return it. top_ids, top_probs: [n + 1, k] its most probable tokens in the same rows, best first, or
    None.
    """

    context: IntArray
    tree: DraftTree
    nodes: Sequence[int]
    token_ids: Sequence[int]
    choices: IntArray | None = None
    top_ids: IntArray | None = None
    top_probs: FloatArray | None = None


def as_token_ids(tokens: object) -> IntArray:
    """[len] int32 array of a list or array of token ids, without a copy where possible."""
    return np.asarray(tokens, dtype=np.int32)
