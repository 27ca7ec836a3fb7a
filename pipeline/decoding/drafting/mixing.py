"""Mixes the probabilities of a draft node from several channels into one. The weights are learned online from accepted
and rejected nodes (logistic mixing as in data compressors of the PAQ family):

    logit p = bias + sum over the channels that name the node of (weight * logit(their probability) + offset)
                   + sum over the channels that only name others in its place of (penalty)
                   + weight * (temperature * noise of the token), for a sampled request

The noise is known before the target's pass. Sampling adds it to the logits, so it decides between likely tokens.
"""

from __future__ import annotations

import numpy as np

from pipeline.decoding.compiled import compiled
from pipeline.decoding.tree import FloatArray

# Value of a channel that lists only other tokens.
OTHERS = -1.0
LOWEST_PROBABILITY = 1e-4
HIGHEST_PROBABILITY = 0.995
# Factor on the learning rate for the weights: logits are several times as large as the offsets' input, which is 1.
WEIGHT_RATE = 0.2


@compiled
def logit(probability: float) -> float:
    clipped = min(max(probability, LOWEST_PROBABILITY), HIGHEST_PROBABILITY)
    return float(np.log(clipped / (1.0 - clipped)))


@compiled
def mixed_probability(channel_probs: FloatArray, noise: float, weights: FloatArray) -> float:
    """The mixed probability of one node. channel_probs: [channels] see `growth.Grown`. noise: of its token, times the
    temperature. weights: [channels + 1, 3] weight, offset and penalty of each channel; the last row holds the bias and
    the weight of the noise."""
    score = weights[-1, 0] + weights[-1, 1] * noise
    for channel in range(len(channel_probs)):
        if channel_probs[channel] > 0:
            score += weights[channel, 0] * logit(channel_probs[channel]) + weights[channel, 1]
        elif channel_probs[channel] < 0:
            score += weights[channel, 2]
    return float(1.0 / (1.0 + np.exp(-score)))


@compiled
def learn(weights: FloatArray, channel_probs: FloatArray, noise: float, was_accepted: bool, rate: float) -> None:
    """One step of gradient descent on the log loss of one node whose parent was accepted."""
    error = (1.0 if was_accepted else 0.0) - mixed_probability(channel_probs, noise, weights)
    weights[-1, 0] += rate * error
    weights[-1, 1] += WEIGHT_RATE * rate * error * noise
    for channel in range(len(channel_probs)):
        if channel_probs[channel] > 0:
            weights[channel, 0] += WEIGHT_RATE * rate * error * logit(channel_probs[channel])
            weights[channel, 1] += rate * error
        elif channel_probs[channel] < 0:
            weights[channel, 2] += rate * error


# Channels of rows, after the orders of the table: first rows, the row that chose the root, rows after rejected nodes.
NUM_ROW_CHANNELS = 3
# Initial weights, fitted by logistic regression to the nodes of model-in-the-loop runs (SmolLM2-135M, 96 prompts of
# Spec-Bench, HumanEval and GSM8K, trie and recycling; 10 and 48 draft tokens, cold and warm, all with equal weight).
# The drafter keeps learning online, so they affect only the first requests, and serve for all models. Index: number of
# the table's orders known after the parent.
# _BIAS: bias. _SOURCE, _ORDERS, _ROWS: (weight, offset, penalty) of a source, of each order, of each channel of rows.
_BIAS = (-2.85, -1.9, -1.85, -1.75)
_SOURCE = ((1.1, 3.3, -0.65), (0.75, 2.05, -0.65), (0.55, 1.2, -0.75), (0.5, 0.9, -1.15))
_ORDERS = (
    (),
    ((0.4, 0.95, -1.15),),
    ((0.35, 0.8, -0.85), (0.3, 0.75, -0.8)),
    ((0.1, 0.45, -0.25), (0.25, 0.65, -0.5), (0.3, 0.85, -0.7)),
)
_ROWS = (
    ((0.6, 2.2, -0.5), (0.05, 0.9, -0.1), (0.1, 0.7, -0.4)),
    ((0.1, 0.5, -0.25), (0.0, 0.75, -0.1), (0.15, 0.5, -0.45)),
    ((0.1, 0.45, 0.15), (-0.05, 0.15, -0.15), (0.15, 0.5, -0.2)),
    ((0.0, 0.15, -0.1), (-0.05, 0.3, -0.1), (0.15, 0.5, -0.2)),
)
# Weight of the noise. With exact estimates it would be 1.
_NOISE = 0.85
MAX_ORDERS = len(_ORDERS) - 1


def prior_weights(num_sources: int, num_orders: int) -> FloatArray:
    """[num_orders + 1, channels + 1, 3] initial weights: sources, orders, channels of rows, then the bias. Without a
    table they leave the estimates of a source unchanged."""
    assert num_orders <= MAX_ORDERS, "one prior per order"
    first_row = num_sources + num_orders
    weights = np.zeros((num_orders + 1, first_row + NUM_ROW_CHANNELS + 1, 3), np.float32)
    for known in range(num_orders + 1):
        weights[known, :num_sources] = _SOURCE[known] if num_orders else (1.0, 0.0, 0.0)
        for order, values in enumerate(_ORDERS[known]):
            weights[known, num_sources + order] = values
        weights[known, first_row:-1] = _ROWS[known]
        weights[known, -1] = _BIAS[known] if num_orders else 0.0, _NOISE, 0.0
    return weights
