"""Mixing what several channels say of a draft node into one probability, learnt online from what was accepted (logistic
mixing as in data compressors of the PAQ family):

    logit p = bias + sum over the channels that name the node of (weight * logit(their probability) + offset)
                   + sum over the channels that only name others in its place of (penalty)
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
def mixed_probability(said: FloatArray, weights: FloatArray) -> float:
    """The mix of the channels' values for one node [channels]. weights: [channels + 1, 3] weight, offset and penalty of
    each channel; the last row holds the bias."""
    score = weights[-1, 0]
    for channel in range(len(said)):
        if said[channel] > 0:
            score += weights[channel, 0] * logit(said[channel]) + weights[channel, 1]
        elif said[channel] < 0:
            score += weights[channel, 2]
    return float(1.0 / (1.0 + np.exp(-score)))


@compiled
def learn(weights: FloatArray, said: FloatArray, was_accepted: bool, rate: float) -> None:
    """One step of gradient descent on the log loss of one node whose parent was accepted."""
    error = (1.0 if was_accepted else 0.0) - mixed_probability(said, weights)
    weights[-1, 0] += rate * error
    for channel in range(len(said)):
        if said[channel] > 0:
            weights[channel, 0] += WEIGHT_RATE * rate * error * logit(said[channel])
            weights[channel, 1] += rate * error
        elif said[channel] < 0:
            weights[channel, 2] += rate * error
