"""Hashes of logits, to compare their bits with drafts and without: those of the rows from which output tokens were
chosen, in the actual trees and batches."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

from pipeline.decoding.tree import FloatArray

# Suffix of a decoding's name for comparisons of rows instead of tokens.
LOGITS = "logits"


class RowHashes(dict[int, bytes]):
    """Hashes of the rows of one request, by the position of the token that was chosen from the row."""

    def add(self, position: int, row: FloatArray) -> None:
        """Store the hash of the bits of one row; 0.0 and -0.0 differ."""
        self[position] = hashlib.blake2b(np.asarray(row, np.float32).tobytes(), digest_size=16).digest()


def first_other_bits(
    expected: Mapping[int, bytes], found: Mapping[int, bytes], prompt_len: int
) -> tuple[int, int | None]:
    """Number of positions in both recordings, and the index of the first output token whose row differs, if any."""
    shared = sorted(expected.keys() & found.keys())
    different = next((position for position in shared if expected[position] != found[position]), None)
    return len(shared), None if different is None else different - prompt_len
