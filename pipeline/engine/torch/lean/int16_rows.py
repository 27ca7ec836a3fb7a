"""Rows of int16 with a scale, which attention multiplies: queries, keys, values and weights of values."""

from __future__ import annotations

from math import isqrt

import numpy as np
from numba import carray

from pipeline.engine.torch.lean.compilation import kernel
from pipeline.engine.torch.lean.rows import (
    float_pointer,
    int16_pointer,
    largest_magnitude,
    quantize_row_int16,
    shift_row,
)
from pipeline.engine.torch.lean.vectors import LANES, padded

# Integers of a value are at most _MAX_VALUE, those of a weight at most _MAX_WEIGHT. The products of a row are below
# 2^31 in sum if the weights are below 2^20. They are below 2^19 before they are rounded, which at most doubles one. A
# shift by _MAX_SHIFT leaves at most 1 of a weight, which is enough for 2^20 weights.
_MAX_VALUE, _MAX_WEIGHT, _WEIGHT_SUM, _MAX_SHIFT = 2047, 32767, 1 << 19, 15


def max_integers(dim: int) -> tuple[int, int]:
    """Largest integers of keys (and queries) and of values. dim: head_dim. A score is below 2^31."""
    return min(isqrt((2**31 - 1) // padded(dim)), 2**15 - 1), _MAX_VALUE


@kernel
def quantize_int16(source: int, count: int, integers: int, target: int) -> np.float32:
    """Write a row of `count` floats as integers of int16 up to `integers`. Returns their scale. The target may begin
    where the source does."""
    whole = count // LANES
    entries, results = carray(float_pointer(source), count), carray(int16_pointer(target), count)
    magnitude: np.float32 = largest_magnitude(source, whole) if whole else np.float32(0)
    for index in range(LANES * whole, count):
        magnitude = max(magnitude, abs(entries[index]))
    factor = inverse_scale(magnitude, integers)
    if whole:
        quantize_row_int16(source, factor, target, whole)
    for index in range(LANES * whole, count):
        results[index] = np.rint(entries[index] * factor)
    scale: np.float32 = magnitude / np.float32(integers)
    return scale


@kernel
def inverse_scale(magnitude: np.float32, integers: int) -> np.float32:
    """Factor that makes the largest entry of a row the largest integer; 0 where it would not be finite."""
    factor = np.float32(integers) / magnitude
    return factor if factor < np.inf else np.float32(0)


@kernel
def quantize_attention_weights(line: int, highest: np.float32, num_blocks: int) -> np.float32:
    """Make the weights of a query int16. highest: the largest one. Returns the value of 1."""
    total = quantize_row_int16(line, inverse_scale(highest, _MAX_WEIGHT), line, num_blocks)
    shift = 0
    while total >> shift >= _WEIGHT_SUM and shift < _MAX_SHIFT:
        shift += 1
    if shift:
        shift_row(line, shift, num_blocks)
    one: np.float32 = highest / np.float32(_MAX_WEIGHT) * np.float32(1 << shift)
    return one
