"""Mixes the probabilities of a draft node from several channels into one, with a small neural network and a
logistic mix that is learned online (as in data compressors of the PAQ family):

    logit p = network + bias
                   + sum over the channels that list the node of (weight * logit(their probability) + offset)
                   + sum over the channels that list only other tokens there of (penalty)
                   + weight * (temperature * noise of the token), for a sampled request
    network = sum over its units of (output weight * the positive part of a sum over channels like the two above)

The network is fixed. It holds what is the same for all texts and models. The logistic mix adapts to the present ones.
The noise is known before the target's pass. Sampling adds it to the logits, so it decides between likely tokens.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pipeline.decoding.compiled import compiled, float32, subkernel
from pipeline.decoding.tree import FloatArray, IntArray

# Value of a channel that lists only other tokens.
OTHERS = -1.0
LOWEST_PROBABILITY = 1e-4
HIGHEST_PROBABILITY = 0.995
# Factor on the learning rate for the weights: logits are several times as large as the offsets' input, which is 1.
WEIGHT_RATE = 0.2
# Channels of rows, after the orders of the table: first rows, the row that chose the root, rows after rejected nodes.
NUM_ROW_CHANNELS = 3
# Initial weight of the noise. With exact estimates it would be 1.
NOISE_WEIGHT = 0.85
NETWORK = Path(__file__).with_name("network.json")
MAX_ORDERS = 3


class Mix(NamedTuple):
    """One set of weights for each number of the table's orders that have an entry after the parent.

    weights: [sets, channels + 1, 3] learned weight, offset and penalty of each channel; the last row holds the bias and
    the weight of the noise. units: [sets, channels + 1, 3, units] the same of each unit of the network. output: [units]
    output weights.
    """

    weights: FloatArray
    units: FloatArray
    output: FloatArray


@compiled
def logit(probability: float) -> float:
    clipped = min(max(probability, LOWEST_PROBABILITY), HIGHEST_PROBABILITY)
    return float(np.log(clipped / (1.0 - clipped)))


@subkernel
def mix_logits(
    mix: Mix, num_orders: int, siblings: IntArray, channel_probs: FloatArray, noise: FloatArray, rows: FloatArray
) -> None:
    """Write the logits of the mixed probabilities of siblings [n] into the last row of `rows` [units + 2, n or more].
    Its other rows are a buffer. num_orders: index of the set. channel_probs: [nodes, channels] see `growth.Grown`.
    noise: [nodes] of their tokens, times the temperature.

    The innermost loops go over siblings, because the compiler turns them into vector instructions."""
    weights, units = mix.weights[num_orders], mix.units[num_orders]
    num_units, num_siblings = len(mix.output), len(siblings)
    # logits: NaN if the channel lists only other tokens.
    logits, mixed = rows[num_units], rows[num_units + 1]
    for index in range(num_siblings):
        mixed[index] = weights[-1, 0] + weights[-1, 1] * noise[siblings[index]]
    for unit in range(num_units):
        sums, bias = rows[unit], units[-1, 0, unit]
        for index in range(num_siblings):
            sums[index] = bias
    for channel in range(channel_probs.shape[1]):
        if channel_probs[siblings[0], channel] == 0:  # no data, which is so for all siblings
            continue
        weight, offset, penalty = weights[channel, 0], weights[channel, 1], weights[channel, 2]
        for index in range(num_siblings):
            probability = channel_probs[siblings[index], channel]
            logits[index] = logit(probability) if probability > 0 else np.nan
            mixed[index] += weight * logits[index] + offset if probability > 0 else penalty
        for unit in range(num_units):
            sums = rows[unit]
            weight, offset, penalty = units[channel, 0, unit], units[channel, 1, unit], units[channel, 2, unit]
            for index in range(num_siblings):
                sums[index] += penalty if np.isnan(logits[index]) else weight * logits[index] + offset
    for unit in range(num_units):
        sums, weight = rows[unit], mix.output[unit]
        for index in range(num_siblings):
            mixed[index] += weight * max(sums[index], float32(0.0))


@compiled
def probability_of(mixed: float) -> float:
    """The probability of a logit."""
    return float(1.0 / (1.0 + np.exp(-mixed)))


@compiled
def mixed_probability(mix: Mix, num_orders: int, channel_probs: FloatArray, noise: float) -> float:
    """The mixed probability of one node. channel_probs: [channels]. noise: of its token."""
    rows = np.empty((len(mix.output) + 2, 1), np.float32)
    only, noises = np.zeros(1, np.int32), np.full(1, noise, np.float32)
    mix_logits(mix, num_orders, only, channel_probs.reshape(1, -1), noises, rows)
    return probability_of(rows[-1, 0])


@compiled
def learn(mix: Mix, num_orders: int, channel_probs: FloatArray, noise: float, was_accepted: bool, rate: float) -> None:
    """One step of gradient descent on the log loss of one node whose parent was accepted."""
    error = (1.0 if was_accepted else 0.0) - mixed_probability(mix, num_orders, channel_probs, noise)
    weights = mix.weights[num_orders]
    weights[-1, 0] += rate * error
    weights[-1, 1] += WEIGHT_RATE * rate * error * noise
    for channel in range(len(channel_probs)):
        if channel_probs[channel] > 0:
            weights[channel, 0] += WEIGHT_RATE * rate * error * logit(channel_probs[channel])
            weights[channel, 1] += rate * error
        elif channel_probs[channel] < 0:
            weights[channel, 2] += rate * error


@functools.cache
def _network() -> dict[str, FloatArray]:
    return {name: np.asarray(values, np.float32) for name, values in json.loads(NETWORK.read_text()).items()}


def first_mix(num_sources: int, num_orders: int) -> Mix:
    """The mix of a new drafter. Channels: sources, orders, channels of rows. Without a table it has no network and
    leaves the estimates of a source unchanged.

    The network was fitted to the candidates after accepted nodes of model-in-the-loop runs (SmolLM2-135M, 302 prompts
    of Spec-Bench, HumanEval and GSM8K, trie and recycling; planned and fixed numbers of draft tokens, cold and warm).
    It serves for all models. All sources have the same weights."""
    assert num_orders <= MAX_ORDERS, "the network has inputs for three orders"
    network = _network()
    num_units = len(network["output"]) if num_orders else 0
    num_channels = num_sources + num_orders + NUM_ROW_CHANNELS
    weights = np.zeros((num_orders + 1, num_channels + 1, 3), np.float32)
    units = np.zeros((*weights.shape, num_units), np.float32)
    weights[:, -1, 1] = NOISE_WEIGHT
    if num_orders:
        units[:, :num_sources] = network["source"]
        units[:, num_sources : num_sources + num_orders] = network["orders"][:num_orders]
        units[:, num_sources + num_orders : -1] = network["rows"]
        units[:, -1, 0] = network["bias"][: num_orders + 1]
        weights[:, -1, 0] = network["output_bias"]
    else:
        weights[0, :num_sources, 0] = 1.0
    return Mix(weights, units, network["output"][:num_units])
