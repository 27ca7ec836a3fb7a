"""What a channel's word is worth before anything was learnt.

Fitted by logistic regression to the nodes of one model-in-the-loop run (SmolLM2-135M, 28 prompts of Spec-Bench,
HumanEval and GSM8K, 64 draft tokens, trie and recycling). From there the drafter goes on learning online, so the values
matter for the first requests only; another model needs no others.
"""

from __future__ import annotations

import numpy as np

from pipeline.decoding.tree import FloatArray

# By how many orders of the continuation table are known behind the parent: bias; (weight, offset, penalty) of a
# proposing source; and the same of each order.
_BIAS = (-1.0, -1.5, -1.0, -0.7)
_SOURCE = ((0.9, 1.0, -0.3), (1.1, 2.5, -0.6), (0.75, 1.4, -0.85), (0.7, 1.2, -1.3))
_ORDERS = (
    (),
    ((0.55, 0.55, -2.0),),
    ((0.3, 0.4, -1.35), (0.3, 0.4, -1.35)),
    ((0.15, 0.15, -0.85), (0.2, 0.05, -0.75), (0.35, 0.5, -1.2)),
)
MAX_ORDERS = len(_ORDERS) - 1


def prior_weights(num_sources: int, num_orders: int) -> FloatArray:
    """[num_orders + 1, num_sources + num_orders + 1, 3] in the layout of `mixing`: channels of the sources, then of the
    orders, then the bias."""
    assert num_orders <= MAX_ORDERS, "one prior per order"
    weights = np.zeros((num_orders + 1, num_sources + num_orders + 1, 3), np.float32)
    for known in range(num_orders + 1):
        weights[known, :num_sources] = _SOURCE[known]
        for order, values in enumerate(_ORDERS[known]):
            weights[known, num_sources + order] = values
        weights[known, -1, 0] = _BIAS[known]
    return weights
