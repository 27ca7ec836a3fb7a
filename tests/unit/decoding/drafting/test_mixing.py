"""The mix of channels and one step of learning, with numbers from a plain calculation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pipeline.decoding.drafting.mixing import (
    HIGHEST_PROBABILITY,
    LOWEST_PROBABILITY,
    OTHERS,
    WEIGHT_RATE,
    learn,
    logit,
    prior_weights,
)
from pipeline.decoding.drafting.mixing import mixed_probability as mixed

# [3 channels and the bias, (weight, offset, penalty)], all different, so that each exchange shows.
WEIGHTS = np.asarray([[0.5, 0.2, -0.3], [2.0, -0.4, -0.7], [1.5, 0.9, -1.1], [-0.6, 0.7, 0.0]], np.float64)


def sigmoid(score: float) -> float:
    return 1 / (1 + math.exp(-score))


def log_odds(probability: float) -> float:
    return math.log(probability / (1 - probability))


@pytest.mark.parametrize("probability", [0.001, 0.25, 0.5, 0.9])
def test_logit_of_a_probability(probability: float) -> None:
    assert logit(probability) == pytest.approx(log_odds(probability))


@pytest.mark.parametrize("probability", [0.002, 0.3, 0.9])
def test_without_a_table_an_estimate_begins_as_it_is(probability: float) -> None:
    channel_probs = np.asarray([probability, 0.0], np.float32)
    assert mixed(channel_probs, 0.0, prior_weights(1, 0)[0]) == pytest.approx(probability, rel=1e-4)


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
    assert mixed(np.asarray(channel_probs), noise, WEIGHTS) == pytest.approx(sigmoid(score))


@pytest.mark.parametrize("was_accepted", [False, True])
def test_a_step_moves_what_took_part_along_the_gradient(was_accepted: bool) -> None:
    weights, channel_probs, rate = WEIGHTS.copy(), np.asarray([0.8, OTHERS, 0.0]), 0.05
    error = was_accepted - mixed(channel_probs, 2.5, weights)
    learn(weights, channel_probs, 2.5, was_accepted, rate)
    expected = WEIGHTS.copy()
    expected[0, :2] += rate * error * WEIGHT_RATE * log_odds(0.8), rate * error
    expected[1, 2] += rate * error
    expected[3, :2] += rate * error, rate * error * WEIGHT_RATE * 2.5
    assert weights == pytest.approx(expected)
    assert WEIGHT_RATE == 0.2
