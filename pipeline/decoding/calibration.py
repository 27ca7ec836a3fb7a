"""Honest probabilities: estimates of paths corrected, upwards and downwards, by what was accepted of their like.

Estimates are compared with what came in cells: one row per channel (a draft source, or an order of the continuation
table), and along it the logarithm of the estimate. An estimate between two cells belongs to both in parts, so that the
correction is continuous (secondary estimation, as in data compressors of the PAQ family)."""

from __future__ import annotations

import numpy as np

from pipeline.decoding.tree import BoolArray, FloatArray, IntArray

# Cells stand at probabilities 1, 2^-1/2, 2^-1, 2^-3/2, ...
NUM_CELLS = 24
CELLS_PER_HALVING = 2
# Accepted nodes that a cell has to see before its own ratio counts as much as no correction.
PRIOR = 3.0
# How fast old verdicts fade, per step.
DECAY = 0.998
LARGEST_RATIO = 6.0
HIGHEST = 0.995


class Calibration:
    """The cells of one drafter: sums over verified nodes, `promised` of their estimates and `accepted` of verdicts."""

    def __init__(self, num_channels: int) -> None:
        self.promised = np.zeros((num_channels, NUM_CELLS))
        self.accepted = np.zeros((num_channels, NUM_CELLS))

    def corrected(self, estimates: FloatArray, channels: IntArray, parents: IntArray) -> FloatArray:
        """[n] probabilities of paths, none above that of its parent. estimates: [n]. channels: [n] which channel gave
        each node its estimate. parents: [n] as in a draft tree."""
        ratios = np.clip((self.accepted + PRIOR) / (self.promised + PRIOR), 1 / LARGEST_RATIO, LARGEST_RATIO)
        low, share = _cells(estimates)
        ratio = (1 - share) * ratios[channels, low] + share * ratios[channels, low + 1]
        result: FloatArray = np.minimum(estimates * ratio, HIGHEST).astype(np.float32)
        for node, parent in enumerate(parents.tolist()):
            if parent >= 0 and result[node] > result[parent]:
                result[node] = result[parent]
        return result

    def learn(self, estimates: FloatArray, channels: IntArray, accepted: BoolArray) -> None:
        """Take in the verdicts on verified nodes. estimates: [n] before correction."""
        self.promised *= DECAY
        self.accepted *= DECAY
        low, share = _cells(estimates)
        for cells, part in ((low, 1 - share), (low + 1, share)):
            np.add.at(self.promised, (channels, cells), part * estimates)
            np.add.at(self.accepted, (channels, cells), part * accepted)


def _cells(estimates: FloatArray) -> tuple[IntArray, FloatArray]:
    """[n] the cell above each estimate, and how far it lies towards the next one."""
    place = np.clip(-CELLS_PER_HALVING * np.log2(np.maximum(estimates, 1e-9)), 0, NUM_CELLS - 1.001)
    low = place.astype(np.int32)
    return low, (place - low).astype(np.float32)
