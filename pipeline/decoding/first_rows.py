"""The target's candidates after single tokens, for a `ContinuationTable` that has not learnt them yet.

They are computed once per model, hold no text of users, and never change.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipeline.decoding.tree import FloatArray, IntArray


class FirstRows(NamedTuple):
    """ids, probs: [tokens, k] the target's most probable tokens behind each token of the vocabulary up to some number,
    best first, and their probabilities."""

    ids: IntArray
    probs: FloatArray


NO_FIRST_ROWS = FirstRows(np.empty((0, 1), np.int32), np.empty((0, 1), np.float32))
