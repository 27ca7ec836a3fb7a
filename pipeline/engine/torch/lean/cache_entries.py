"""Loops over entries of the KV cache: keys are rotated, keys and values are written, and those of accepted nodes are
moved. A *place* is an index into a slot (see `attention`).

This module is separate from `kv_cache`, whose imports would make the machine code depend on modules without loops.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import carray

from pipeline.engine.torch.lean import tables
from pipeline.engine.torch.lean.attention import address_of
from pipeline.engine.torch.lean.compilation import kernel
from pipeline.engine.torch.lean.int16_rows import quantize_int16
from pipeline.engine.torch.lean.phases import norm
from pipeline.engine.torch.lean.rows import float_pointer, int16_pointer, prefetch_to_write, store_float
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
    # Keys of neighbouring places share cache lines, so each thread takes consecutive rows.
    for row in work_units(thread, counter, num_rows, (num_rows + num_threads - 1) // num_threads):
        address = buffers[tables.QKV_OUT, 0] + row * buffers[tables.QKV_OUT, 1]
        slot, position, place = rows[row, tables.ROW_SLOT], rows[row, tables.ROW_POSITION], rows[row, tables.ROW_PLACE]
        prefetch_keys(cache[tables.KEYS], layer, slot, num_kv_heads, dim, place)
        cosine, sine = rotation[0, position], rotation[1, position]
        spare = buffers[tables.ATTENDED, 0] + row * buffers[tables.ATTENDED, 1]
        for head in range(num_heads + num_kv_heads):
            start = address + 4 * dim * head
            weight = norms[tables.Q_NORM] if head < num_heads else norms[tables.K_NORM]
            if weight:
                norm(start, weight, start, dim, epsilon)
            rotate(start, cosine, sine, dim // 2)
        first = address + 4 * dim * num_heads
        for head in range(num_kv_heads):
            write_key(cache, layer, slot, head, place, first + 4 * dim * head, dim, spare)
            write_value(cache, layer, slot, head, place, first + 4 * dim * (num_kv_heads + head), dim, spare)
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
def write_key(cache: Longs, layer: int, slot: int, head: int, place: int, source: int, dim: int, spare: int) -> None:
    """Write a row of `dim` floats as the key of a place. spare: address of memory for `dim` integers."""
    table = cache[tables.KEYS]
    target = address_of(table, layer, slot, head) + place // LANES * table[tables.CACHE_BLOCK] + place % LANES * 4
    row, count = source, dim
    if table[tables.CACHE_ENTRY] == 2:
        scale = quantize_int16(source, dim, table[tables.CACHE_RANGE], spare)
        store_float(address_of(cache[tables.KEY_SCALES], layer, slot, head) + 4 * place, scale)
        row, count = spare, dim // 2  # pairs of integers, as floats
    entries = carray(float_pointer(row), count)
    for index in range(count):
        store_float(target + 4 * LANES * index, entries[index])


@kernel
def write_value(cache: Longs, layer: int, slot: int, head: int, place: int, source: int, dim: int, spare: int) -> None:
    """Write a row of `dim` floats as the value of a place. spare: address of memory for `dim` integers."""
    table = cache[tables.VALUES]
    value, block_bytes = address_of(table, layer, slot, head), table[tables.CACHE_BLOCK]
    if table[tables.CACHE_ENTRY] == 4:
        entries = carray(float_pointer(source), dim)
        for index in range(dim):
            target = value + index // LANES * block_bytes + 4 * (place * LANES + index % LANES)
            # A masked draft has the weight 0, and 0 times NaN or infinity would be NaN.
            store_float(target, entries[index] if np.isfinite(entries[index]) else np.float32(0))
        return
    scale = quantize_int16(source, dim, table[tables.CACHE_RANGE], spare)
    store_float(address_of(cache[tables.VALUE_SCALES], layer, slot, head) + 4 * place, scale)
    for first in range(0, dim, LANES):
        pairs = value + first // LANES * block_bytes + 4 * LANES * (place // 2)
        count = min(LANES, dim - first)
        integers, targets = carray(int16_pointer(spare + 2 * first), count), carray(int16_pointer(pairs), 2 * count)
        for index in range(count):
            targets[2 * index + place % 2] = integers[index]


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
