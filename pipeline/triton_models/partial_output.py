"""Parts of an output that several calls produce: text, token ids, log probabilities and logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from pipeline.triton_models.guide_tensors import PROMPT_OUTPUTS
from pipeline.triton_models.tensors import Array, Tensors, float_tensor, text_tensor

# Outputs with a row per token, and the axis of the tokens.
_AXES = {"output_log_probs": 2, "generation_logits": 2, "top_logprob_ids": 1, "top_logprobs": 1}
# Outputs that a call names if its request asks for any of them. A response has those that were asked for.
LOGIT_OUTPUTS = (*_AXES, *PROMPT_OUTPUTS)


@dataclass(slots=True)
class HeldLogits:
    """Log probabilities and logits of tokens that are held back, because they may belong to a stop word. total: sum of
    the log probabilities returned so far."""

    total: float = 0.0
    _kept: dict[str, Array] = field(default_factory=dict)

    def add(self, response: Tensors, num_tokens: int) -> None:
        """Store a response's outputs about the prompt and about the num_tokens tokens that it adds to the output."""
        found = {name: response[name] for name in PROMPT_OUTPUTS if name in response}
        found |= {name: _first(response[name], num_tokens, axis) for name, axis in _AXES.items() if name in response}
        self._kept = joined([self._kept, found])

    def take(self, num_tokens: int) -> dict[str, Array]:
        """Remove and return the outputs about the next num_tokens tokens, and about the prompt if still stored."""
        taken: dict[str, Array] = {}
        kept, self._kept = self._kept, {}
        for name, value in kept.items():
            axis = _AXES.get(name)
            taken[name] = value if axis is None else _first(value, num_tokens, axis)
            if axis is not None and value.shape[axis] > num_tokens:
                self._kept[name] = value.take(range(num_tokens, value.shape[axis]), axis=axis)
        if "output_log_probs" in taken:
            self.total += float(taken["output_log_probs"].sum())
            taken["cum_log_probs"] = float_tensor(self.total)
        return taken


def _first(value: Array, count: int, axis: int) -> Array:
    return value.take(range(min(count, value.shape[axis])), axis=axis)


def joined(parts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Concatenate outputs along their token axis. Of an output without such an axis the last value remains."""
    result: dict[str, Array] = {}
    for part in parts:
        for name, value in part.items():
            axis = _AXES.get(name)
            whole = result.get(name)
            if axis is None or whole is None or not whole.size:
                result[name] = value
            elif value.size:
                result[name] = np.concatenate([whole, value], axis=axis)
    return result


class PartialOutput(NamedTuple):
    """Part of an output. text: empty if the request returns tokens only. logits: output tensors with log probabilities
    and logits, if requested."""

    text: str
    token_ids: list[int]
    logits: Mapping[str, Array] = MappingProxyType({})

    def joined(self, other: PartialOutput) -> PartialOutput:
        """Concatenate text and tokens of two parts, without logits."""
        return PartialOutput(self.text + other.text, self.token_ids + other.token_ids)


def output_of(parts: Sequence[PartialOutput], tokens_only: bool) -> dict[str, Array]:
    """Output tensors of concatenated parts: `output_ids` [1, tokens] or `text_output` [1], and logits."""
    output = joined([part.logits for part in parts])
    if tokens_only:
        output["output_ids"] = np.asarray([[token for part in parts for token in part.token_ids]], np.int32)
    else:
        output["text_output"] = text_tensor("".join(part.text for part in parts))[0]
    return output
