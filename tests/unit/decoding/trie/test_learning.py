"""A step of learning follows the gradient of the log probability."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipeline.decoding.trie import Trie
from pipeline.decoding.trie.estimator import LEARNING_RATE, Estimator
from pipeline.decoding.trie.learning import LEAST_SHARE
from pipeline.decoding.trie.next_tokens import NUM_CLASSES
from tests.kernel_examples import examples
from tests.unit.decoding.trie.reference import Suffix, suffixes_in

BRANCH = 6


def ids(tokens: list[int]) -> np.ndarray:
    return np.asarray(tokens, np.int32)


def log_probability(heard: list[Suffix], token: int, log_escapes: np.ndarray) -> float:
    probability, rest = 0.0, 1.0
    for suffix in heard:
        weight = suffix.total / (suffix.total + np.exp(log_escapes[suffix.cell]))
        probability += rest * weight * suffix.followers.count(token) / suffix.total
        rest *= 1 - weight
    return float(np.log(probability + rest * LEAST_SHARE))


@settings(max_examples=examples(100))
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=40),
    st.lists(st.integers(0, 3), max_size=BRANCH - 2),
    st.integers(0, 4),
    st.integers(0, 2**32 - 1),
)
def test_a_step_of_learning_follows_the_gradient_of_the_log_probability(text, context, token, seed):
    own = Trie(BRANCH)
    own.insert(ids(text))
    estimator = Estimator(BRANCH)
    estimator.escape_counts[:] = np.exp(np.random.default_rng(seed).uniform(-1, 2, len(estimator.escape_counts)))
    before = np.log(estimator.escape_counts.astype(np.float64)).reshape(2, -1, NUM_CLASSES)[0]
    heard = list(suffixes_in(text, context, BRANCH))
    assume(heard)
    estimator.learn(own, None, "", ids(context), ids([token]))
    change = np.log(estimator.escape_counts.astype(np.float64)).reshape(2, -1, NUM_CLASSES)[0] - before
    expected = np.zeros_like(before)
    for cell in (suffix.cell for suffix in heard):
        above, below = before.copy(), before.copy()
        above[cell] += 1e-5
        below[cell] -= 1e-5
        slope = (log_probability(heard, token, above) - log_probability(heard, token, below)) / 2e-5
        expected[cell] = LEARNING_RATE * slope
    assert change == pytest.approx(expected, abs=2e-4, rel=2e-3)
