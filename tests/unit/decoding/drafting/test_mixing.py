"""The mix of channels and one step of learning, with numbers from a plain calculation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pipeline.decoding.drafting.mixing import (
    HIGHEST_PROBABILITY,
    LOWEST_PROBABILITY,
    MAX_ORDERS,
    OTHERS,
    WEIGHT_RATE,
    Mix,
    first_mix,
    learn,
    logit,
    mixed_probability,
)

# [3 channels and the bias, (weight, offset, penalty)], all different, so that each exchange shows.
WEIGHTS = np.asarray([[0.5, 0.2, -0.3], [2.0, -0.4, -0.7], [1.5, 0.9, -1.1], [-0.6, 0.7, 0.0]], np.float32)
# Two units of a network: one that is positive in the cases below, and its negative.
UNITS = np.stack([np.abs(WEIGHTS) + [0.0, 0.1, 0.2] + [[3.0]] * 4, -np.abs(WEIGHTS) - [[3.0]] * 4], -1)
OUTPUT = np.asarray([0.3, 100.0], np.float32)


def mix_of(output: np.ndarray = OUTPUT) -> Mix:
    """Two sets, of which the second is in use."""
    units = np.asarray([UNITS * 0.0, UNITS], np.float32)
    return Mix(np.stack([WEIGHTS * 0.0, WEIGHTS]), units, output)


def mixed(mix: Mix, channel_probs: list[float], noise: float = 0.0, num_orders: int = 1) -> float:
    return mixed_probability(mix, num_orders, np.asarray(channel_probs, np.float32), noise)


def sigmoid(score: float) -> float:
    return 1 / (1 + math.exp(-score))


def log_odds(probability: float) -> float:
    return math.log(probability / (1 - probability))


@pytest.mark.parametrize("probability", [0.001, 0.25, 0.5, 0.9])
def test_logit_of_a_probability(probability: float) -> None:
    assert logit(probability) == pytest.approx(log_odds(probability))


@pytest.mark.parametrize("probability", [0.002, 0.3, 0.9])
def test_without_a_table_an_estimate_begins_as_it_is(probability: float) -> None:
    assert mixed(first_mix(1, 0), [probability, 0.0, 0.0, 0.0], num_orders=0) == pytest.approx(probability, rel=1e-4)


def test_certain_channels_are_clipped_to_finite_logits() -> None:
    assert (LOWEST_PROBABILITY, HIGHEST_PROBABILITY) == (1e-4, 0.995)
    assert logit(0.0) == pytest.approx(log_odds(1e-4))
    assert logit(1.0) == pytest.approx(log_odds(0.995))


@pytest.mark.parametrize(
    ("channel_probs", "noise", "score"),
    [
        ([0.0, 0.0, 0.0], 0.0, -0.6),
        ([0.0, 0.0, 0.0], 1.5, -0.6 + 0.7 * 1.5),
        ([0.3, 0.0, 0.0], 0.0, -0.6 + 0.5 * log_odds(0.3) + 0.2),
        ([0.0, OTHERS, 0.0], 0.0, -0.6 - 0.7),
        ([0.8, OTHERS, 0.1], -1.0, -0.6 - 0.7 + 0.5 * log_odds(0.8) + 0.2 - 0.7 + 1.5 * log_odds(0.1) + 0.9),
    ],
)
def test_the_mix_adds_weighted_logits_offsets_penalties_and_noise(
    channel_probs: list[float], noise: float, score: float
) -> None:
    assert mixed(mix_of(np.zeros(2, np.float32)), channel_probs, noise) == pytest.approx(sigmoid(score))


def test_the_network_adds_the_positive_parts_of_its_units() -> None:
    first = UNITS[-1, 0, 0] + UNITS[0, 0, 0] * log_odds(0.8) + UNITS[0, 1, 0] + UNITS[1, 2, 0]
    linear = -0.6 + 0.5 * log_odds(0.8) + 0.2 - 0.7
    assert mixed(mix_of(), [0.8, OTHERS, 0.0]) == pytest.approx(sigmoid(linear + 0.3 * first), rel=1e-5)


@pytest.mark.parametrize("was_accepted", [False, True])
def test_a_step_moves_what_took_part_along_the_gradient(was_accepted: bool) -> None:
    mix, channel_probs, rate = mix_of(), np.asarray([0.8, OTHERS, 0.0], np.float32), 0.05
    error = was_accepted - mixed_probability(mix, 1, channel_probs, 2.5)
    learn(mix, 1, channel_probs, 2.5, was_accepted, rate)
    expected = WEIGHTS.copy()
    expected[0, :2] += rate * error * WEIGHT_RATE * log_odds(0.8), rate * error
    expected[1, 2] += rate * error
    expected[3, :2] += rate * error, rate * error * WEIGHT_RATE * 2.5
    assert mix.weights[1] == pytest.approx(expected)
    assert not mix.weights[0].any()
    assert np.array_equal(mix.units, mix_of().units)
    assert WEIGHT_RATE == 0.2


@pytest.mark.parametrize("num_orders", range(1, MAX_ORDERS + 1))
def test_a_new_mix_believes_what_all_channels_name(num_orders: int) -> None:
    """Of a second source and the orders. Neither another source nor the rows have data."""
    mix = first_mix(2, num_orders)
    agreed = [0.0, 0.6] + [0.6] * num_orders + [0.0] * 3
    unsure = [0.0, 0.2] + [0.2] * num_orders + [0.0] * 3
    denied = [0.0, 0.6] + [OTHERS] * num_orders + [0.0] * 3
    values = [mixed(mix, channel_probs, num_orders=num_orders) for channel_probs in (agreed, unsure, denied)]
    assert values[0] > 0.6 > max(values[1:])
