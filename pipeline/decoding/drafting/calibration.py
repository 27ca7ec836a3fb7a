"""Calibrates the estimated probabilities of paths by the share of similar nodes that were accepted.

Nodes are counted in cells: one row per channel (a draft source, or an order of the continuation table), and one cell
per range of the estimate's logarithm. An estimate between two cells counts for both, in proportion, so the correction
is continuous (secondary estimation, as in data compressors of the PAQ family).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.decoding.compiled import compiled
from pipeline.decoding.tree import BoolArray, FloatArray, IntArray

DoubleArray = npt.NDArray[np.float64]

# Cells stand at probabilities 1, 2^-1/2, 2^-1, 2^-3/2, ...
NUM_CELLS = 24
CELLS_PER_HALVING = 2
# Weight, in nodes, of a prior ratio of 1 (no correction).
PRIOR = 3.0
# Decay of old outcomes, per step.
DECAY = 0.998
LARGEST_RATIO = 6.0
HIGHEST = 0.995


class Calibration(NamedTuple):
    """The cells of one drafter, [channels, NUM_CELLS] sums over verified nodes. promised: of the estimates. accepted:
    of the accepted nodes."""

    promised: DoubleArray
    accepted: DoubleArray


def first_calibration(num_channels: int) -> Calibration:
    """The calibration of a new drafter."""
    return Calibration(np.zeros((num_channels, NUM_CELLS)), np.zeros((num_channels, NUM_CELLS)))


@compiled
def corrected(calibration: Calibration, estimates: FloatArray, channels: IntArray, parents: IntArray) -> FloatArray:
    """[n] calibrated path probabilities, none above that of its parent. estimates: [n]. channels: [n] the channel of
    each estimate. parents: [n] as in a draft tree."""
    promised, accepted = calibration
    result = np.empty(len(estimates), np.float32)
    for node in range(len(estimates)):
        channel = channels[node]
        low, share = _cell(estimates[node])
        ratio = (1.0 - share) * _ratio(promised[channel, low], accepted[channel, low])
        ratio += share * _ratio(promised[channel, low + 1], accepted[channel, low + 1])
        result[node] = min(estimates[node] * ratio, HIGHEST)
        if parents[node] >= 0:
            result[node] = min(result[node], result[parents[node]])
    return result


@compiled
def learn_ratios(
    calibration: Calibration, estimates: FloatArray, channels: IntArray, known: BoolArray, accepted: BoolArray
) -> None:
    """Update the cells with the outcome of a step. estimates: [n] before correction. known, accepted: see
    `learning.Outcome`."""
    promised, accepted_sums = calibration
    for channel in range(len(promised)):
        for cell in range(NUM_CELLS):
            promised[channel, cell] *= DECAY
            accepted_sums[channel, cell] *= DECAY
    for node in range(len(estimates)):
        if not known[node]:
            continue
        low, share = _cell(estimates[node])
        for cell, part in ((low, 1.0 - share), (low + 1, share)):
            promised[channels[node], cell] += part * estimates[node]
            if accepted[node]:
                accepted_sums[channels[node], cell] += part


@compiled
def _ratio(promised: float, accepted: float) -> float:
    return min(max((accepted + PRIOR) / (promised + PRIOR), 1.0 / LARGEST_RATIO), LARGEST_RATIO)


@compiled
def _cell(estimate: float) -> tuple[int, float]:
    """The lower cell of an estimate, and the share of the next one."""
    cell = min(max(-CELLS_PER_HALVING * np.log2(max(estimate, 1e-9)), 0.0), NUM_CELLS - 1.001)
    low = int(cell)
    return low, cell - low
