"""Chooses a token from the target's logits, reproducibly.

Sampling is Gumbel-max with keyed noise: the token is argmax(log p + g), where the noise g of every vocabulary entry is
a function of (seed, absolute position) alone. The same seed therefore gives the same text with any drafts or none,
alone or in a batch: drafts only determine how many positions one pass computes. (Gumbel-max trick: Maddison et al.,
arXiv 1411.0030; counter-based generator: Philox, Salmon et al., SC 2011, as provided by numpy.)

Order of operations:

    1. embedding bias (logit_bias)
    2. repetition penalty, presence and frequency penalty
    3. bad words, and end tokens before the minimum length
    4. the grammar; if 3 bans every token, or all that the grammar permits, 3 is skipped
    5. the best token (greedy), or temperature, top-k, top-p, min-p, noise

Log probabilities are those of the target itself, before any of this (`log_probs`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.decoding.grammar.masks import TokenMask
from pipeline.decoding.noise import NOISE_RANGE, gumbel_noise
from pipeline.decoding.request import GenerationRequest, SamplingParams
from pipeline.decoding.sampling_checks import LARGEST, SMALLEST
from pipeline.decoding.tree import FloatArray, IntArray


def needs_logits(request: GenerationRequest) -> bool:
    """Whether choosing this request's tokens takes the logits, and not only their argmax."""
    params = request.sampling
    return not (
        params.greedy
        and params.repetition_penalty == 1.0
        and params.presence_penalty == 0.0
        and params.frequency_penalty == 0.0
        and not params.bad_words
        and params.embedding_bias is None
        and request.min_new_tokens == 0
    )


def choose_token(
    request: GenerationRequest, logits: FloatArray, context: IntArray, mask: TokenMask | None = None
) -> int:
    """The request's next token after context [len] (prompt and output so far), given the target's logits [vocab]. mask:
    the tokens that the request's grammar permits next, at least one."""
    if mask is not None and mask.only is not None:
        return mask.only
    params = request.sampling
    scores = logits.astype(np.float32, copy=True)
    with np.errstate(over="ignore"):
        if params.embedding_bias is not None:
            scores = _limited(scores + params.embedding_bias.astype(np.float32, copy=False))
        _penalise(scores, params, context)
    scores = _permitted(scores, request, context, mask)
    if params.greedy:
        return int(scores.argmax())
    # The best score is set to 0 first, so that a tiny temperature cannot overflow it.
    with np.errstate(over="ignore"):
        scores = (scores - scores.max()) / np.float32(max(params.temperature, SMALLEST))
    tokens = _candidates(scores, params)
    return int(tokens[(scores[tokens] + gumbel_noise(params.seed, len(context), tokens)).argmax()])


def _permitted(scores: FloatArray, request: GenerationRequest, context: IntArray, mask: TokenMask | None) -> FloatArray:
    """The scores with -inf for tokens that the grammar forbids, or that bad words and the minimum length ban after
    context. Bans that leave no token are ignored."""
    if mask is not None:
        scores[mask.forbidden(len(scores))] = -np.inf
    words = request.sampling.bad_words
    banned = {word[-1] for word in words if len(word) == 1 or tuple(context[1 - len(word) :].tolist()) == word[:-1]}
    if len(context) - len(request.prompt_ids) + request.num_resumed_tokens < request.min_new_tokens:
        banned |= request.end_ids | request.late_ids
    if not banned:
        return scores
    permitted = scores.copy()
    permitted[[token for token in banned if 0 <= token < len(scores)]] = -np.inf
    return permitted if np.isfinite(permitted.max()) else scores


def _penalise(scores: FloatArray, params: SamplingParams, context: IntArray) -> None:
    """Apply the repetition penalty (arXiv 1909.05858) to every token of the context, and presence and frequency
    penalties to those from `prompt_ignore_length` on. All come before the temperature, as in transformers and the
    OpenAI API. (TensorRT-LLM divides by the temperature first.)"""
    if params.repetition_penalty != 1.0:
        seen = np.unique(context)
        values = scores[seen]
        penalty = np.float32(params.repetition_penalty)
        scores[seen] = _limited(np.where(values > 0, values / penalty, values * penalty))
    if params.presence_penalty != 0.0 or params.frequency_penalty != 0.0:
        tokens, counts = np.unique(context[params.prompt_ignore_length :], return_counts=True)
        presence = np.float32(params.presence_penalty)
        frequency = np.float32(params.frequency_penalty) * counts.astype(np.float32)
        scores[tokens] = _limited(_limited(scores[tokens] - presence) - frequency)


def _limited(scores: FloatArray) -> FloatArray:
    """Clip scores to the largest float32 numbers: the difference of two infinite scores would be NaN."""
    limited: FloatArray = np.clip(scores, np.float32(-LARGEST), np.float32(LARGEST))
    return limited


def _candidates(scores: FloatArray, params: SamplingParams) -> NDArray[np.int64]:
    """The tokens that top-k, top-p and min-p permit, ascending, without those that no noise can make the best. scores:
    [vocab] relative to the best one. All tokens with the k-th best score are permitted."""
    tokens, permitted = np.flatnonzero(scores >= -NOISE_RANGE), scores
    if 0 < params.top_k < len(tokens):
        permitted = scores[tokens]
        tokens = tokens[permitted >= np.partition(permitted, -params.top_k)[-params.top_k]]
        permitted = scores[tokens]
    if params.top_p < 1.0:
        total = np.exp(permitted, dtype=np.float64).sum()
        # Tokens below this weight are not sorted. Together they have at most half of the share that top-p leaves out.
        lightest = (1.0 - params.top_p) * total / (2 * len(permitted))
        weights = np.exp(scores[tokens], dtype=np.float64)
        heavy = weights >= lightest
        tokens, weights = tokens[heavy], weights[heavy]
        # Sorted by score, because at a huge temperature all weights are equal.
        order = np.argsort(-scores[tokens], kind="stable")
        before = np.cumsum(weights[order]) - weights[order]
        tokens = np.sort(tokens[order[before < params.top_p * total]])
    if params.min_p > 0.0:
        tokens = tokens[np.exp(scores[tokens], dtype=np.float64) >= params.min_p]
    return tokens
