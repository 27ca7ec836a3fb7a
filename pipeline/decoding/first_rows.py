"""What the target would say behind a single token: the rows that a `ContinuationTable` lacks until it has learnt.

They are computed once per model, hold no user's text, and never change."""

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
