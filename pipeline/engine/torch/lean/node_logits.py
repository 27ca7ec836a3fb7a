"""Logits of a pass, their largest entries, and the probabilities of these."""

from __future__ import annotations

import numpy as np

from pipeline.decoding.tree import FloatArray, IntArray
from pipeline.engine.torch.lean.compilation import kernel
from pipeline.engine.torch.lean.rows import sum_of_exp
from pipeline.engine.torch.lean.tables import Floats, aligned
from pipeline.engine.torch.lean.thread_team import PHASE_BYTES, work_units
from pipeline.engine.torch.lean.tiles import MAX_BLOCKS
from pipeline.engine.torch.lean.vectors import LANES

# Logits per stored maximum.
BLOCK = LANES * MAX_BLOCKS


class LeanLogits:
    """Implements `PassLogits`. logits: [rows, padded vocabulary], -inf after the vocabulary. maxima: [rows, blocks] of
    `BLOCK` entries each. choices: [rows]. ids, probabilities: [rows, k] those that a pass has computed."""

    def __init__(self, num_rows: int, width: int, num_top: int, vocab_size: int) -> None:
        """Memory for the results of a pass. width: padded vocabulary. num_top: k."""
        self.logits: Floats = aligned((num_rows, width), np.float32, np.empty)
        self.maxima: Floats = np.empty((num_rows, -(-width // BLOCK)), np.float32)
        self.choices: IntArray = np.empty(num_rows, np.int32)
        self.ids: IntArray = np.empty((num_rows, min(num_top, vocab_size)), np.int32)
        self.probabilities: FloatArray = np.empty(self.ids.shape, np.float32)
        self._vocab_size = vocab_size

    def rows(self, part: slice) -> FloatArray:
        return self.logits[part, : self._vocab_size]

    def top_k(self, part: slice, k: int) -> tuple[IntArray, FloatArray]:
        if k == self.ids.shape[1]:
            return self.ids[part], self.probabilities[part]
        logits = self.logits[part]
        ids = np.empty((len(logits), k), np.int32)
        probabilities = np.empty(ids.shape, np.float32)
        top_rows(logits, self.maxima[part], ids, probabilities)
        return ids, probabilities


@kernel
def find_largest(
    thread: int,
    num_threads: int,
    logits: Floats,
    maxima: Floats,
    choices: IntArray,
    ids: IntArray,
    probabilities: FloatArray,
    counter: int,
) -> int:
    """The last phase of a pass: for each row the index of the first largest entry, and the most probable ones."""
    for row in work_units(thread, counter, len(logits), (len(logits) + num_threads - 1) // num_threads):
        first = np.argmax(maxima[row]) * BLOCK
        choices[row] = first + np.argmax(logits[row, first : first + BLOCK])
        if ids.shape[1]:
            part = slice(row, row + 1)
            top_rows(logits[part], maxima[part], ids[part], probabilities[part])
    return counter + PHASE_BYTES


@kernel
def top_rows(logits: Floats, maxima: Floats, ids: IntArray, probabilities: FloatArray) -> None:
    """Write the k most probable entries of each row into ids and probabilities [n, k], best first; of equal ones the
    first. The k largest entries lie in the k blocks with the largest maxima."""
    k = ids.shape[1]
    num_blocks = min(k, maxima.shape[1])
    blocks = np.empty(num_blocks, np.int32)
    heads = np.empty(num_blocks, np.float32)
    values = np.empty(k, np.float32)
    for row in range(len(logits)):
        heads[:], blocks[:] = -np.inf, -1
        for block in range(maxima.shape[1]):
            insert(heads, blocks, maxima[row, block], block)
        blocks.sort()
        values[:], ids[row] = -np.inf, 0
        for block in blocks[blocks >= 0]:
            for entry in range(block * BLOCK, min((block + 1) * BLOCK, logits.shape[1])):
                insert(values, ids[row], logits[row, entry], entry)
        total = sum_of_exp(logits[row].ctypes.data, logits.shape[1] // LANES, values[0])
        for number in range(k):
            probabilities[row, number] = np.exp(values[number] - values[0]) / total


@kernel
def insert(values: Floats, indices: IntArray, value: np.float32, index: int) -> None:
    """Insert an entry into a list in descending order if it is larger than the last one, which is dropped. Of equal
    entries the one inserted first comes first."""
    rank = len(values) - 1
    if not value > values[rank]:
        return
    while rank > 0 and value > values[rank - 1]:
        values[rank], indices[rank] = values[rank - 1], indices[rank - 1]
        rank -= 1
    values[rank], indices[rank] = value, index
