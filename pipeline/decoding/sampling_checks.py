"""Validation of sampling options. Clients use it too, so it imports no compiled loops."""

from __future__ import annotations

import numpy as np

from pipeline.decoding.request import SamplingParams
from pipeline.errors import RequestError

# Scores are computed in float32, as the logits are.
LARGEST = float(np.finfo(np.float32).max)
SMALLEST = float(np.finfo(np.float32).tiny)


def check_sampling(params: SamplingParams, vocab_size: int) -> None:
    """Raise RequestError, with all faults, if a value is outside its range. A value that is not finite would turn
    logits into NaN, and NaN would permit banned tokens."""
    finite = f"in {-LARGEST:.1e} .. {LARGEST:.1e}"
    faults = [
        f"{name} is {value}; it must be {rule}"
        for name, value, rule, good in (
            ("temperature", params.temperature, f"in 0 .. {LARGEST:.1e}", 0 <= params.temperature <= LARGEST),
            ("top_k", params.top_k, ">= 0", params.top_k >= 0),
            ("top_p", params.top_p, "in (0, 1]", 0 < params.top_p <= 1),
            ("min_p", params.min_p, "in [0, 1]", 0 <= params.min_p <= 1),
            (
                "repetition_penalty",
                params.repetition_penalty,
                f"in {SMALLEST:.1e} .. {LARGEST:.1e}",
                SMALLEST <= params.repetition_penalty <= LARGEST,
            ),
            ("presence_penalty", params.presence_penalty, finite, is_finite(params.presence_penalty)),
            ("frequency_penalty", params.frequency_penalty, finite, is_finite(params.frequency_penalty)),
            ("prompt_ignore_length", params.prompt_ignore_length, ">= 0", params.prompt_ignore_length >= 0),
            ("seed", params.seed, "in 0 .. 2**64 - 1", 0 <= params.seed < 1 << 64),
        )
        if not good
    ]
    bias = params.embedding_bias
    if bias is not None and bias.shape != (vocab_size,):
        faults.append(f"embedding_bias has shape {bias.shape}; it must be ({vocab_size},)")
    elif bias is not None and not (np.abs(bias) <= LARGEST).all():
        token = int(np.argmin(np.abs(bias) <= LARGEST))
        faults.append(f"embedding_bias of token {token} is {bias[token]}; it must be {finite}")
    if not all(params.bad_words):
        faults.append("bad_words hold a word without tokens")
    if any(not 0 <= token < vocab_size for word in params.bad_words for token in word):
        faults.append(f"bad_words hold a token outside the vocabulary 0 .. {vocab_size - 1}")
    if faults:
        raise RequestError("; ".join(faults))


def is_finite(value: float) -> bool:
    """Whether a number is finite in float32, the type of logits."""
    return -LARGEST <= value <= LARGEST
