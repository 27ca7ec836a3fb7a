"""Loops over entries of the KV cache: keys are rotated, keys and values are written, and those of accepted nodes are
moved. A *place* is an index into a slot (see `attention`).

This module is separate from `kv_cache`, whose imports would make the machine code depend on modules without loops.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import carray

from pipeline.engine.torch.lean import tables
from pipeline.engine.torch.lean.attention import address_of, inverse_scale
from pipeline.engine.torch.lean.compilation import kernel
from pipeline.engine.torch.lean.phases import norm
from pipeline.engine.torch.lean.rows import (
    float_pointer,
    largest_magnitude,
    prefetch_to_write,
    store_float,
    store_short,
)
from pipeline.engine.torch.lean.tables import Floats, Longs
from pipeline.engine.torch.lean.thread_team import PHASE_BYTES, work_units
from pipeline.engine.torch.lean.vectors import LANES

# float32 or int16, for keys two integers in one number.
Entries = npt.NDArray[np.float32] | npt.NDArray[np.int16] | npt.NDArray[np.int32]


@kernel
def rotate_rows(
    thread: int,
    sizes: Longs,
    epsilon: float,
    layer: int,
    norms: Longs,
    buffers: Longs,
    rotation: Floats,
    cache: Longs,
    rows: Longs,
    counter: int,
) -> int:
    """Apply norm (if the model has one) and rotation to queries in place, and to keys. Write keys and values to the
    cache."""
    num_rows, dim, num_threads = sizes[tables.NUM_ROWS], sizes[tables.HEAD_DIM], sizes[tables.NUM_THREADS]
    num_heads, num_kv_heads = sizes[tables.NUM_HEADS], sizes[tables.NUM_KV_HEADS]
    # Rows with neighbouring places share the cache lines of keys, so each thread takes a range of rows.
    for row in work_units(thread, counter, num_rows, (num_rows + num_threads - 1) // num_threads):
        address = buffers[tables.QKV_OUT, 0] + row * buffers[tables.QKV_OUT, 1]
        slot, position, place = rows[row, tables.ROW_SLOT], rows[row, tables.ROW_POSITION], rows[row, tables.ROW_PLACE]
        prefetch_keys(cache[tables.KEYS], layer, slot, num_kv_heads, dim, place)
        cosine, sine = rotation[0, position], rotation[1, position]
        for head in range(num_heads + num_kv_heads):
            start = address + 4 * dim * head
            weight = norms[tables.Q_NORM] if head < num_heads else norms[tables.K_NORM]
            if weight:
                norm(start, weight, start, dim, epsilon)
            rotate(start, cosine, sine, dim // 2)
        first = address + 4 * dim * num_heads
        for head in range(num_kv_heads):
            write_key(cache, layer, slot, head, place, first + 4 * dim * head, dim)
            write_value(cache, layer, slot, head, place, first + 4 * dim * (num_kv_heads + head), dim)
    return counter + PHASE_BYTES


@kernel
def rotate(address: int, cosine: Floats, sine: Floats, half: int) -> None:
    """Rotate the two halves of a head in place (arXiv 2104.09864)."""
    left, right = carray(float_pointer(address), half), carray(float_pointer(address + 4 * half), half)
    for index in range(half):
        first, second = left[index], right[index]
        left[index] = first * cosine[index] - second * sine[index]
        right[index] = second * cosine[index] + first * sine[index]


@kernel
def prefetch_keys(cache: Longs, layer: int, slot: int, num_heads: int, dim: int, place: int) -> None:
    """Prefetch the cache lines of a place's keys, because the entries of a key are in different lines."""
    for head in range(num_heads):
        line = address_of(cache, layer, slot, head) + place // LANES * cache[tables.CACHE_BLOCK]
        for index in range(dim * cache[tables.CACHE_ENTRY] // 4):
            prefetch_to_write(line + 4 * LANES * index)


@kernel
def write_key(cache: Longs, layer: int, slot: int, head: int, place: int, source: int, dim: int) -> None:
    """Write a row of `dim` floats as the key of a place."""
    table = cache[tables.KEYS]
    target = address_of(table, layer, slot, head) + place // LANES * table[tables.CACHE_BLOCK] + place % LANES * 4
    entries = carray(float_pointer(source), dim)
    if table[tables.CACHE_ENTRY] == 4:
        for index in range(dim):
            store_float(target + 4 * LANES * index, entries[index])
        return
    factor = _write_scale(table, cache[tables.KEY_SCALES], layer, slot, head, place, source, dim)
    for index in range(dim):
        store_short(target + 4 * LANES * (index // 2) + 2 * (index % 2), np.int64(np.rint(entries[index] * factor)))


@kernel
def write_value(cache: Longs, layer: int, slot: int, head: int, place: int, source: int, dim: int) -> None:
    """Write a row of `dim` floats as the value of a place."""
    table = cache[tables.VALUES]
    value = address_of(table, layer, slot, head)
    factor = np.float32(0)
    if table[tables.CACHE_ENTRY] == 2:
        factor = _write_scale(table, cache[tables.VALUE_SCALES], layer, slot, head, place, source, dim)
    for first in range(0, dim, LANES):
        count = min(LANES, dim - first)
        target = value + first // LANES * table[tables.CACHE_BLOCK]
        entries = carray(float_pointer(source + 4 * first), count)
        if table[tables.CACHE_ENTRY] == 4:
            for index in range(count):
                store_float(target + 4 * LANES * place + 4 * index, entries[index])
        else:
            target += 4 * LANES * (place // 2) + 2 * (place % 2)
            for index in range(count):
                store_short(target + 4 * index, np.int64(np.rint(entries[index] * factor)))


@kernel
def _write_scale(
    table: Longs, scales: Longs, layer: int, slot: int, head: int, place: int, source: int, dim: int
) -> np.float32:
    """Write the scale of a key or value of `dim` floats. Returns its inverse. table: row of `cache` of the entries."""
    whole = dim // LANES
    magnitude: np.float32 = largest_magnitude(source, whole) if whole else np.float32(0)
    entries = carray(float_pointer(source), dim)
    for index in range(LANES * whole, dim):
        magnitude = max(magnitude, abs(entries[index]))
    integers = table[tables.CACHE_RANGE]
    store_float(address_of(scales, layer, slot, head) + 4 * place, magnitude / np.float32(integers))
    factor: np.float32 = inverse_scale(magnitude, integers)
    return factor


@kernel
def move_places(keys: Entries, values: Entries, scales: Floats, slot: int, start: int, nodes: Longs) -> None:
    """Move keys and values from the places start + nodes, which ascend, to start, start + 1, ..."""
    num_layers, _, num_heads, _, num_lines, _ = keys.shape
    num_blocks, per_pair, has_scales = values.shape[3], values.shape[6], scales.shape[4] > 0
    for layer in range(num_layers):
        for head in range(num_heads):
            for index in range(len(nodes)):
                source, target = start + nodes[index], start + index
                for number in range(num_lines):
                    line = keys[layer, slot, head, :, number]
                    line[target // LANES, target % LANES] = line[source // LANES, source % LANES]
                for block in range(num_blocks):
                    pairs = values[layer, slot, head, block]
                    for lane in range(LANES):
                        entry = pairs[source // per_pair, lane, source % per_pair]
                        pairs[target // per_pair, lane, target % per_pair] = entry
                if has_scales:
                    for each in range(2):
                        scales[each, layer, slot, head, target] = scales[each, layer, slot, head, source]
