"""Rows of the target's last pass that change the estimates of the next draft tokens.

They were computed after other tokens than those to draft after. So they add no candidates, but change the estimates of
those that other channels list:

* The row that chose the root. Tokens that it gave a high probability and that were not chosen often follow soon
  (arXiv 2507.01449).
* Rows after rejected nodes, for the position after their node. The tokens in them are likely at this position, but
  were computed after another token than the one that was chosen.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipeline.decoding.compiled import compiled
from pipeline.decoding.request import StepResult
from pipeline.decoding.tree import FloatArray, IntArray, read_only

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


def recent_rows(step: StepResult, path: IntArray) -> RecentRows:
    """The rows of a step, for the tree of the next one. path: accepted nodes. Empty if the target returned none."""
    if step.top_ids is None or step.top_probs is None:
        return NO_RECENT_ROWS
    return RecentRows(read_only(step.top_ids), read_only(step.top_probs), _depths(step.tree.parents, path))


@compiled
def _depths(parents: IntArray, path: IntArray) -> IntArray:
    """[n + 1] `RecentRows.depths` of the rows of the root and of a verified tree's nodes.

    The next root is one level below the last accepted node. A node d levels below that one has the position of depth
    d - 1 in the next tree, so its row is about depth d."""
    below = np.empty(len(parents) + 1, np.int32)
    below[0] = -len(path)
    for node in range(len(parents)):
        below[node + 1] = below[parents[node] + 1] + 1
    result = np.where(below > 0, below, np.int32(NONE))
    result[path[-1] + 1 if len(path) else 0] = EVERY
    return result
