"""Initial weights of the channels, before anything was learned.

Fitted by logistic regression to the nodes of one model-in-the-loop run (SmolLM2-135M, 28 prompts of Spec-Bench,
HumanEval and GSM8K, 64 draft tokens, trie and recycling). The drafter keeps learning online, so the values matter for
the first requests only; another model needs no others.
"""

from __future__ import annotations

import numpy as np

from pipeline.decoding.tree import FloatArray

# By the number of the table's orders known after the parent: bias; (weight, offset, penalty) of a proposing source; the
# same of each order.
_BIAS = (-1.6, -1.75, -1.8, -1.9)
_SOURCE = ((0.85, 2.3, -1.2), (0.65, 1.75, -0.6), (0.45, 1.05, -0.7), (0.35, 0.7, -0.85))
_ORDERS = (
    (),
    ((0.55, 1.15, -1.15),),
    ((0.3, 0.85, -0.85), (0.3, 0.7, -0.7)),
    ((0.3, 0.7, -0.7), (0.1, 0.65, -0.65), (0.3, 0.6, -0.6)),
)
# Of the first rows.
_FIRST = ((0.6, 1.1, -1.1), (0.2, 0.35, -0.35), (0.05, 0.25, -0.25), (0.0, 0.0, 0.0))
MAX_ORDERS = len(_ORDERS) - 1


def prior_weights(num_sources: int, num_orders: int) -> FloatArray:
    """[num_orders + 1, num_sources + num_orders + 2, 3] in the layout of `mixing`: channels of the sources, of the
    orders, of the first rows, then the bias."""
    assert num_orders <= MAX_ORDERS, "one prior per order"
    weights = np.zeros((num_orders + 1, num_sources + num_orders + 2, 3), np.float32)
    for known in range(num_orders + 1):
        weights[known, :num_sources] = _SOURCE[known]
        for order, values in enumerate(_ORDERS[known]):
            weights[known, num_sources + order] = values
        weights[known, num_sources + num_orders] = _FIRST[known]
        weights[known, -1, 0] = _BIAS[known]
    return weights
