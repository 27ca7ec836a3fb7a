"""Entries of the KV cache: keys are rotated, keys and values are written, and those of accepted nodes are moved."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import carray

from pipeline.engine.torch.lean import tables
from pipeline.engine.torch.lean.attention import address_of
from pipeline.engine.torch.lean.compilation import kernel
from pipeline.engine.torch.lean.crew import PHASE_BYTES, shared
from pipeline.engine.torch.lean.phases import norm
from pipeline.engine.torch.lean.rows import fetch_to_write, float_pointer, store_float, store_half
from pipeline.engine.torch.lean.tables import Floats, Longs
from pipeline.engine.torch.lean.vectors import LANES

# float32, or the bits of bfloat16.
Entries = npt.NDArray[np.float32] | npt.NDArray[np.uint16]


@kernel
def rotate_rows(
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
    for row in shared(counter, num_rows, (num_rows + num_threads - 1) // num_threads):
        address = buffers[tables.QKV_OUT, 0] + row * buffers[tables.QKV_OUT, 1]
        slot, position, place = rows[row, tables.ROW_SLOT], rows[row, tables.ROW_POSITION], rows[row, tables.ROW_PLACE]
        fetch_keys(cache[tables.KEYS], layer, slot, num_kv_heads, dim, place)
        cosine, sine = rotation[0, position], rotation[1, position]
        for head in range(num_heads + num_kv_heads):
            start = address + 4 * dim * head
            weight = norms[tables.Q_NORM] if head < num_heads else norms[tables.K_NORM]
            if weight:
                norm(start, weight, start, dim, epsilon)
            rotate(start, cosine, sine, dim // 2)
        first = address + 4 * dim * num_heads
        for head in range(num_kv_heads):
            key = address_of(cache[tables.KEYS], layer, slot, head)
            write_key(cache[tables.KEYS], key, place, first + 4 * dim * head, dim)
            value = address_of(cache[tables.VALUES], layer, slot, head)
            write_value(cache[tables.VALUES], value, place, first + 4 * dim * (num_kv_heads + head), dim)
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
def fetch_keys(cache: Longs, layer: int, slot: int, num_heads: int, dim: int, place: int) -> None:
    """Prefetch the cache lines of a place's keys, because the entries of a key are in different lines."""
    for head in range(num_heads):
        line = address_of(cache, layer, slot, head) + place // LANES * cache[tables.CACHE_BLOCK]
        for index in range(dim):
            fetch_to_write(line + index * LANES * cache[tables.CACHE_ENTRY])


@kernel
def write_key(cache: Longs, key: int, place: int, source: int, dim: int) -> None:
    """Write a row of `dim` floats as the key of a place. key: address of the head's keys."""
    entry = cache[tables.CACHE_ENTRY]
    target = key + place // LANES * cache[tables.CACHE_BLOCK] + place % LANES * entry
    entries = carray(float_pointer(source), dim)
    for index in range(dim):
        _store(entry, target + index * LANES * entry, entries[index])


@kernel
def write_value(cache: Longs, value: int, place: int, source: int, dim: int) -> None:
    """Write a row of `dim` floats as the value of a place. value: address of the head's values."""
    entry = cache[tables.CACHE_ENTRY]
    for first in range(0, dim, LANES):
        count = min(LANES, dim - first)
        target = value + first // LANES * cache[tables.CACHE_BLOCK] + place * LANES * entry
        entries = carray(float_pointer(source + 4 * first), count)
        for index in range(count):
            _store(entry, target + index * entry, entries[index])


@kernel
def _store(entry: int, address: int, value: float) -> None:
    """Write an entry of 4 bytes as float32, or one of 2 as bfloat16."""
    if entry == 4:
        store_float(address, value)
    else:
        store_half(address, value)


@kernel
def move_places(keys: Entries, values: Entries, slot: int, start: int, nodes: Longs) -> None:
    """Move keys and values from the places start + nodes, which ascend, to start, start + 1, ..."""
    num_layers, _, num_heads, _, dim, _ = keys.shape
    for layer in range(num_layers):
        for head in range(num_heads):
            for place in range(len(nodes)):
                source, target = start + nodes[place], start + place
                for entry in range(dim):
                    line = keys[layer, slot, head, :, entry]
                    line[target // LANES, target % LANES] = line[source // LANES, source % LANES]
                for block in range(dim // LANES):
                    for lane in range(LANES):
                        values[layer, slot, head, block, target, lane] = values[layer, slot, head, block, source, lane]
