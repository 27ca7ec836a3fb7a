"""Rows of the target's last pass that say something about the next draft tokens.

They were computed after other tokens than those to draft after. So they name no candidates, but change the estimates
of those that other channels name:

* The row that chose the root. Tokens that it gave a high probability and that were not chosen often follow soon
  (arXiv 2507.01449).
* Rows after rejected nodes, for the position after their node. The target expected these tokens there, after another
  token than the one that was chosen.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipeline.decoding.request import StepResult
from pipeline.decoding.tree import FloatArray, IntArray, depths, read_only

# Depth of the row that chose the root, and of rows that are about no later position.
EVERY = 0
NONE = -1


class RecentRows(NamedTuple):
    """Rows of one pass. ids, probs: [rows, k] most probable tokens and their probabilities. depths: [rows] depth in the
    next tree of the nodes that a row is about, `EVERY` or `NONE`."""

    ids: IntArray
    probs: FloatArray
    depths: IntArray


NO_RECENT_ROWS = RecentRows(
    read_only(np.empty((0, 1), np.int32)), read_only(np.empty((0, 1), np.float32)), np.empty(0, np.int32)
)


def recent_rows(step: StepResult) -> RecentRows:
    """The rows of a step, for the tree of the next one. Empty if the target returned none."""
    if step.top_ids is None or step.top_probs is None:
        return NO_RECENT_ROWS
    about = np.full(len(step.tree) + 1, NONE, np.int32)
    # The next root is one level below the last accepted node. A node d levels below that one has the position of depth
    # d - 1 in the next tree, so its row is about depth d.
    below = depths(step.tree) - len(step.nodes)
    about[1:][below > 0] = below[below > 0]
    about[step.nodes[-1] + 1 if step.nodes else 0] = EVERY
    return RecentRows(read_only(step.top_ids), read_only(step.top_probs), about)
