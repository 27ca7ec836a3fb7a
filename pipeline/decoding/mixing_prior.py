"""Initial weights of the channels, before anything was learned.

Fitted by logistic regression to the nodes of one model-in-the-loop run (SmolLM2-135M, 16 prompts of Spec-Bench,
HumanEval and GSM8K, 64 draft tokens, trie and recycling). The drafter keeps learning online, so the values matter for
the first requests only; another model needs no others. Where no source fills a table, estimates begin as they are.
"""

from __future__ import annotations

import numpy as np

from pipeline.decoding.tree import FloatArray

# By the number of the table's orders known after the parent: bias; (weight, offset, penalty) of a proposing source; the
# same of each order.
_BIAS = (-2.4, -1.65, -1.6, -1.75)
_SOURCE = ((1.2, 3.55, -2.6), (1.15, 3.5, -1.8), (1.0, 2.15, -1.3), (0.65, 0.85, -1.9))
_ORDERS = (
    (),
    ((0.5, 1.25, -1.2),),
    ((0.55, 1.15, -0.95), (0.4, 0.75, -0.55)),
    ((0.2, 0.35, -0.2), (0.3, 0.8, -0.65), (0.2, 0.85, -0.75)),
)
# Of the first rows.
_FIRST = ((0.35, 1.75, -0.85), (0.5, 0.85, -0.8), (0.2, 0.35, -0.2), (0.25, 0.3, -0.55))
MAX_ORDERS = len(_ORDERS) - 1


def prior_weights(num_sources: int, num_orders: int) -> FloatArray:
    """[num_orders + 1, num_sources + num_orders + 2, 3] in the layout of `mixing`: channels of the sources, of the
    orders, of the first rows, then the bias."""
    assert num_orders <= MAX_ORDERS, "one prior per order"
    weights = np.zeros((num_orders + 1, num_sources + num_orders + 2, 3), np.float32)
    for known in range(num_orders + 1):
        weights[known, :num_sources] = _SOURCE[known] if num_orders else (1.0, 0.0, 0.0)
        for order, values in enumerate(_ORDERS[known]):
            weights[known, num_sources + order] = values
        weights[known, num_sources + num_orders] = _FIRST[known]
        weights[known, -1, 0] = _BIAS[known] if num_orders else 0.0
    return weights
