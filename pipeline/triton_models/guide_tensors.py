"""Tensors of guides (grammars) and of log probabilities, under TensorRT-LLM's names where it has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from pipeline.decoding.grammar.guide import Guide, check_guide
from pipeline.decoding.log_probs import LogitOptions, PromptLogits, TokenLogProb, check_logit_options
from pipeline.decoding.tree import FloatArray
from pipeline.errors import RequestError
from pipeline.triton_models.tensors import (
    Array,
    Tensors,
    flag,
    float_tensor,
    int_tensor,
    integer,
    text,
    text_tensor,
)

GUIDE_TYPE, GUIDE = "guided_decoding_guide_type", "guided_decoding_guide"
# Outputs about the prompt, which only the first response has.
PROMPT_OUTPUTS = ("prompt_log_probs", "prompt_top_logprob_ids", "prompt_top_logprobs", "context_logits")


def guide_of(tensors: Tensors) -> Guide | None:
    """The guide of a request; None if it sets none. Raises RequestError if the guide is invalid."""
    kind, value = text(tensors, GUIDE_TYPE), text(tensors, GUIDE)
    if not kind:
        if value:
            raise RequestError(f"{GUIDE} was sent without {GUIDE_TYPE}; send both")
        return None
    guide = Guide(kind, value or "")
    check_guide(guide)
    return guide


def guide_tensors(guide: Guide) -> dict[str, Array]:
    """The tensors that `guide_of` reads."""
    tensors = {GUIDE_TYPE: text_tensor(guide.kind)}
    return tensors | {GUIDE: text_tensor(guide.text)} if guide.text else tensors


def logit_options_of(tensors: Tensors) -> LogitOptions:
    """Logits and log probabilities that a request asks for. Raises RequestError if its options contradict each
    other."""
    wanted = LogitOptions(
        log_probs=flag(tensors, "return_log_probs"),
        num_top=integer(tensors, "num_top_logprobs") or 0,
        prompt=flag(tensors, "return_prompt_log_probs"),
        generation_logits=flag(tensors, "return_generation_logits"),
        context_logits=flag(tensors, "return_context_logits"),
    )
    check_logit_options(wanted)
    return wanted


def logit_option_tensors(wanted: LogitOptions, of_prompt: bool) -> dict[str, Array]:
    """The tensors that `logit_options_of` reads. of_prompt: include those about the prompt."""
    flags = {
        "return_log_probs": wanted.log_probs,
        "return_prompt_log_probs": wanted.prompt and of_prompt,
        "return_generation_logits": wanted.generation_logits,
        "return_context_logits": wanted.context_logits and of_prompt,
    }
    tensors: dict[str, Array] = {name: np.asarray([[True]]) for name, value in flags.items() if value}
    return tensors | {"num_top_logprobs": int_tensor(wanted.num_top)} if wanted.num_top else tensors


@dataclass(slots=True)
class LogitOutputs:
    """Collects the logits and log probabilities of a request's steps, and makes the output tensors. wanted: options of
    the request."""

    wanted: LogitOptions
    _pending: list[TokenLogProb] = field(default_factory=list)
    _prompt: PromptLogits | None = None
    _total: float = 0.0

    def take(self, log_probs: Sequence[TokenLogProb], prompt: PromptLogits | None) -> None:
        self._pending += log_probs
        self._prompt = prompt or self._prompt

    def tensors(self, num_tokens: int) -> dict[str, Array]:
        """Output tensors of the next num_tokens output tokens and, once, of the prompt. Collected rows beyond
        num_tokens are dropped: the output was cut there."""
        pending, self._pending = self._pending[:num_tokens], []
        tensors: dict[str, Array] = {}
        if self.wanted.log_probs:
            self._total += sum(token.value for token in pending)
            tensors["output_log_probs"] = _values(pending)[None]
            tensors["cum_log_probs"] = float_tensor(self._total)
            tensors |= _top("", pending, self.wanted.num_top)
        if self.wanted.generation_logits:
            own = [token.row for token in pending if token.row is not None]
            tensors["generation_logits"] = _stacked(own)[None, None]
        prompt, self._prompt = self._prompt, None
        if prompt is None:
            return tensors
        if self.wanted.context_logits:
            tensors["context_logits"] = _stacked(prompt.rows)[None]
        if self.wanted.log_probs and self.wanted.prompt:
            tensors["prompt_log_probs"] = _values(prompt.log_probs)
            tensors |= _top("prompt_", prompt.log_probs, self.wanted.num_top)
        return tensors


def _values(tokens: Sequence[TokenLogProb]) -> FloatArray:
    """[1, tokens] log probabilities."""
    return np.asarray([[token.value for token in tokens]], np.float32)


def _top(prefix: str, tokens: Sequence[TokenLogProb], num_top: int) -> dict[str, Array]:
    """[1, tokens, num_top] ids and log probabilities of the most probable tokens; none if num_top is 0."""
    if not num_top:
        return {}
    shape = (1, len(tokens), -1 if tokens else num_top)
    return {
        f"{prefix}top_logprob_ids": np.asarray([token.top_ids for token in tokens], np.int32).reshape(shape),
        f"{prefix}top_logprobs": np.asarray([token.top_values for token in tokens], np.float32).reshape(shape),
    }


def _stacked(rows: Sequence[FloatArray]) -> FloatArray:
    """Stack the rows to [rows, vocab]; an empty list gives [0, 0]."""
    stacked: FloatArray = np.stack(rows).astype(np.float32) if rows else np.empty((0, 0), np.float32)
    return stacked
