from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipeline.decoding.trie import Trie
from pipeline.decoding.trie.estimator import LEARNING_RATE, Estimator
from pipeline.decoding.trie.learning import LEAST_SHARE
from tests.kernel_examples import examples

BRANCH = 6


def ids(tokens: list[int]) -> np.ndarray:
    return np.asarray(tokens, np.int32)


def suffixes_heard(text: list[int], context: list[int], token: int) -> list[tuple[tuple[int, int], int, float]]:
    """From the longest suffix of the context down: (order, class), tokens that followed it, share of `token`."""
    heard = []
    seen = 0
    for order in range(min(len(context), BRANCH - 1), -1, -1):
        suffix = context[len(context) - order :]
        ends = [at + order for at in range(len(text) - order + 1) if text[at : at + order] == suffix]
        times = len(ends) if order else len(text)
        if not ends or (order and times == seen):
            continue
        seen = times
        followers = [text[end] for end in ends if end < len(text)]
        if not followers:
            continue
        differ = len(set(followers)) > 1
        total = times if differ else len(followers)
        size = 0 if total <= 1 else 1 if total <= 2 else 2 if total <= 4 else 3
        heard.append(((order, size + 4 * differ), total, followers.count(token) / total))
    return heard


def log_probability(heard: list[tuple[tuple[int, int], int, float]], log_doubts: np.ndarray) -> float:
    probability, escape = 0.0, 1.0
    for cell, total, share in heard:
        weight = total / (total + np.exp(log_doubts[cell]))
        probability += escape * weight * share
        escape *= 1 - weight
    return float(np.log(probability + escape * LEAST_SHARE))


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
    estimator.doubts[:] = np.exp(np.random.default_rng(seed).uniform(-1, 2, len(estimator.doubts)))
    before = np.log(estimator.doubts.astype(np.float64)).reshape(2, -1, 8)[0]
    heard = suffixes_heard(text, context, token)
    assume(heard)
    estimator.learn(own, None, "", ids(context), ids([token]))
    change = np.log(estimator.doubts.astype(np.float64)).reshape(2, -1, 8)[0] - before
    expected = np.zeros_like(before)
    for cell, _, _ in heard:
        above, below = before.copy(), before.copy()
        above[cell] += 1e-5
        below[cell] -= 1e-5
        slope = (log_probability(heard, above) - log_probability(heard, below)) / 2e-5
        expected[cell] = LEARNING_RATE * slope
    assert change == pytest.approx(expected, abs=2e-4, rel=2e-3)
