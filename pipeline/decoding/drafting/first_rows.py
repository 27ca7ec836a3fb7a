"""The target's most probable tokens after single tokens, for contexts that a `ContinuationTable` has not learned yet.

They are computed once per model, contain no user text, and never change.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipeline.decoding.tree import FloatArray, IntArray


class FirstRows(NamedTuple):
    """Rows of single tokens. ids, probs: [tokens, k] the target's most probable tokens after each of the first `tokens`
    ids of the vocabulary, best first, and their probabilities."""

    ids: IntArray
    probs: FloatArray


NO_FIRST_ROWS = FirstRows(np.empty((0, 1), np.int32), np.empty((0, 1), np.float32))
