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
from tests.kernel_examples import examples, texts
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
    texts(4, 40),
    texts(4, 40),
    texts(4, BRANCH),
    st.integers(0, 4),
    st.integers(0, 2**32 - 1),
)
def test_a_step_of_learning_follows_the_gradient_of_the_log_probability(mine, others, context, token, seed):
    own, shared = Trie(BRANCH), Trie(BRANCH)
    own.insert(ids(mine))
    shared.insert(ids(others))
    estimator = Estimator(BRANCH)
    estimator.escape_counts[:] = np.exp(np.random.default_rng(seed).uniform(-1, 2, len(estimator.escape_counts)))
    before = np.log(estimator.escape_counts.astype(np.float64)).reshape(2, -1, NUM_CLASSES)
    heard = list(suffixes_in([mine, others], context, BRANCH))
    assume(heard)
    estimator.learn(own, shared, "", ids(context), ids([token]))
    change = np.log(estimator.escape_counts.astype(np.float64)).reshape(2, -1, NUM_CLASSES) - before
    expected = np.zeros_like(before)
    for cell in (suffix.cell for suffix in heard):
        above, below = before.copy(), before.copy()
        above[cell] += 1e-5
        below[cell] -= 1e-5
        slope = (log_probability(heard, token, above) - log_probability(heard, token, below)) / 2e-5
        expected[cell] = LEARNING_RATE * slope
    assert change == pytest.approx(expected, abs=2e-4, rel=2e-3)


@pytest.mark.parametrize(("token", "bound", "near"), [(0, 0.0067, 0.00671), (9, 148.0, 147.9)])
def test_escape_counts_stay_within_their_bounds(token, bound, near):
    own, estimator = Trie(BRANCH), Estimator(BRANCH)
    own.insert(ids([0] * 20))
    estimator.escape_counts[:] = near
    for _ in range(20):
        estimator.learn(own, None, "", ids([]), ids([token]))
    farthest = max(estimator.escape_counts.tolist(), key=lambda count: abs(count - near))
    assert farthest == pytest.approx(bound, rel=1e-6)


def test_a_token_that_many_sure_suffixes_rule_out_is_learned_from():
    """Its probability would be 0 in 32 bits."""
    own, shared, estimator = Trie(12), Trie(12), Estimator(12)
    for trie in (own, shared):
        trie.insert(ids([0] * 30))
    estimator.escape_counts[:] = 0.0067
    estimator.learn(own, shared, "", ids([0] * 11), ids([9]))
    assert np.isfinite(estimator.escape_counts).all()
    assert estimator.escape_counts.max() > 0.0067
