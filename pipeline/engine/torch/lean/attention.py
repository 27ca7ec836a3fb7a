"""Attention over the slot cache with one order of sums for every query.

    keys     [layer, slot, kv_head, place / 16, dim, 16 places]
    values   [layer, slot, kv_head, dim / 16, place, 16 dims]         dim: head_dim, up to a multiple of 16

This is for entries of float32. Entries of int16 are in pairs, as the tiles of `tiles` read them, and each key and each
value of a head has a scale, its largest entry over the largest integer:

    keys     [layer, slot, kv_head, place / 16, dim / 2, 16 places, 2 dims]
    values   [layer, slot, kv_head, dim / 16, place / 2, 16 dims, 2 places]
    scales   [keys or values, layer, slot, kv_head, place]              float32

Queries are quantized in the same way. Weights are multiplied by the scales of the values, and quantized so that the
largest is 32,767, or less by a power of two where their sum would be too large for sums of products in int32. Products
of integers are exact. Scores, exponentials and their sum are as for float32.

A place is an index into a slot. A query attends to the cached places of its slot, to its own place, and to those of its
ancestors in its segment. A weighted sum of float32 values runs over places in ascending order, and a masked place adds
exactly 0. Ancestors in a tree have ascending places, in the order in which they would be cached. Every other sum over
places is of integers. So a token's bits are the same in a tree, in a chain and alone, with any part of its context
cached.
"""

from __future__ import annotations

import numpy as np
from numba import carray

from pipeline.engine.torch.lean import tables
from pipeline.engine.torch.lean.compilation import kernel
from pipeline.engine.torch.lean.int16_rows import quantize_attention_weights, quantize_int16
from pipeline.engine.torch.lean.rows import (
    EXP_BITS,
    exp_row,
    float_pointer,
    largest,
    mask_end,
    scale_weights,
    store_float,
)
from pipeline.engine.torch.lean.tables import Floats, Longs
from pipeline.engine.torch.lean.thread_team import PHASE_BYTES, work_units
from pipeline.engine.torch.lean.tiles import MAX_BLOCKS, MAX_ROWS, float32_tile, int16_tile
from pipeline.engine.torch.lean.vectors import LANES

# Columns of `segments`: first row of the pass, rows, cached places, slot, rows of a task, and the segment's first task.
START, LENGTH, CACHED, SLOT, TASK_ROWS, FIRST_TASK, NUM_SEGMENT_FIELDS = range(7)


@kernel
def attend(
    thread: int,
    sizes: Longs,
    layer: int,
    window: int,
    buffers: Longs,
    cache: Longs,
    rows: Longs,
    segments: Longs,
    scratch: Floats,
    counter: int,
) -> int:
    """One thread's part of a layer's attention. Returns the address of the next phase's counter.

    sizes, buffers, cache, rows: see `tables`; QKV_OUT holds rotated queries, ATTENDED gets the results. segments: by
    the columns above; the row after the last segment holds the number of tasks. scratch: see `attention_tasks`."""
    num_segments, num_kv_heads = len(segments) - 1, sizes[tables.NUM_KV_HEADS]
    num_tasks = segments[num_segments, FIRST_TASK]
    segment = 0
    for task in work_units(thread, counter, num_tasks, 1):
        while task >= segments[segment + 1, FIRST_TASK]:
            segment += 1
        while task < segments[segment, FIRST_TASK]:
            segment -= 1
        number = task - segments[segment, FIRST_TASK]
        size = segments[segment, TASK_ROWS]
        first = number // num_kv_heads * size
        last = min(first + size, segments[segment, LENGTH])
        head = number % num_kv_heads
        each, memory = segments[segment], scratch[thread]
        _attend_task(sizes, layer, window, buffers, cache, rows, each, memory, first, last, head)
    return counter + PHASE_BYTES


@kernel
def _attend_task(
    sizes: Longs,
    layer: int,
    window: int,
    buffers: Longs,
    cache: Longs,
    rows: Longs,
    segment: Longs,
    scratch: Floats,
    first: int,
    last: int,
    head: int,
) -> None:
    """Compute the attention of rows first .. last of a segment, for the query heads of one key head."""
    dim, group = sizes[tables.HEAD_DIM], sizes[tables.NUM_HEADS] // sizes[tables.NUM_KV_HEADS]
    projected, attended = buffers[tables.QKV_OUT], buffers[tables.ATTENDED]
    start, cached, slot = segment[START], segment[CACHED], segment[SLOT]
    count = (last - first) * group
    blocks = (dim + LANES - 1) // LANES
    width = 4 * LANES * blocks
    entry = cache[tables.KEYS, tables.CACHE_ENTRY]
    is_short, per_step = entry == 2, 4 // entry
    ones = scratch.ctypes.data
    zeros = ones + 4 * sizes[tables.NUM_ONES]
    scales = zeros + 4 * LANES * MAX_BLOCKS
    extremes = scales + 4 * LANES * ((count + LANES - 1) // LANES)
    left = extremes + extremes - scales
    out = left + count * width
    weights = out + count * width
    scale = np.float32(1) / np.sqrt(np.float32(dim))
    query_bytes = 4 * dim * group
    integers = cache[tables.KEYS, tables.CACHE_RANGE]
    for row in range(first, last):
        source = projected[0] + (start + row) * projected[1] + query_bytes * head
        for query in range(group):
            number = (row - first) * group + query
            target = left + number * width
            _scale(source + 4 * dim * query, scale, target, dim)
            if is_short:
                store_float(scales + 4 * number, quantize_int16(target, dim, integers, target))
    # The rows attend only to places begin .. end - 1; begin is a multiple of 16.
    end = cached + last
    begin = 0
    if window:
        least = rows[start + first, tables.ROW_POSITION]
        for row in range(first + 1, last):
            least = min(least, rows[start + row, tables.ROW_POSITION])
        begin = max(0, least - window + 1) // LANES * LANES
    seen = end - begin
    num_blocks = (seen + LANES - 1) // LANES
    line_bytes = 4 * LANES * num_blocks
    key_bytes, value_bytes = cache[tables.KEYS, tables.CACHE_BLOCK], cache[tables.VALUES, tables.CACHE_BLOCK]
    key = address_of(cache[tables.KEYS], layer, slot, head) + begin // LANES * key_bytes
    value = address_of(cache[tables.VALUES], layer, slot, head) + begin * LANES * entry
    key_scales = address_of(cache[tables.KEY_SCALES], layer, slot, head) + 4 * begin
    value_scales = address_of(cache[tables.VALUE_SCALES], layer, slot, head) + 4 * begin
    steps = dim // per_step
    _product(
        is_short, left, width, scales, count, key, key_bytes, key_scales, steps, num_blocks, weights, line_bytes, zeros
    )
    for row in range(first, last):
        own = weights + (row - first) * group * line_bytes
        _mask_row(own, group, num_blocks, row, begin, segment, window, rows)
    # One loop per operation, so that the processor begins with the next query while it joins the lanes of a result.
    factors, highest = carray(float_pointer(scales), count), carray(float_pointer(extremes), count)
    for query in range(count):
        highest[query] = largest(weights + query * line_bytes, num_blocks)
    for query in range(count):
        units = exp_row(weights + query * line_bytes, num_blocks, highest[query])
        factors[query] = np.float32(1 << EXP_BITS) / np.float32(units)
    if is_short:
        for query in range(count):
            highest[query] = scale_weights(weights + query * line_bytes, value_scales, num_blocks)
        for query in range(count):
            factors[query] *= quantize_attention_weights(weights + query * line_bytes, highest[query], num_blocks)
    steps = (seen + per_step - 1) // per_step
    _product(is_short, weights, line_bytes, ones, count, value, value_bytes, ones, steps, blocks, out, width, zeros)
    for row in range(first, last):
        target = attended[0] + (start + row) * attended[1] + query_bytes * head
        for query in range(group):
            number = (row - first) * group + query
            _scale(out + number * width, factors[number], target + 4 * dim * query, dim)


@kernel
def _scale(source: int, factor: float, target: int, count: int) -> None:
    """target[i] = source[i] * factor for `count` floats at these addresses."""
    entries, results = carray(float_pointer(source), count), carray(float_pointer(target), count)
    for index in range(count):
        results[index] = entries[index] * factor


@kernel
def address_of(cache: Longs, layer: int, slot: int, head: int) -> int:
    """Address of the keys or values of a head. cache: a row of the table."""
    address: int = cache[tables.CACHE_ADDRESS]
    address += layer * cache[tables.CACHE_LAYER] + slot * cache[tables.CACHE_SLOT] + head * cache[tables.CACHE_HEAD]
    return address


@kernel
def _product(
    is_short: bool,
    left: int,
    left_stride: int,
    left_scales: int,
    count: int,
    right: int,
    block_stride: int,
    right_scales: int,
    steps: int,
    num_blocks: int,
    out: int,
    out_stride: int,
    zeros: int,
) -> None:
    """out [count, num_blocks * 16] = left [count, steps] times right. is_short: whether both are int16, with two
    entries in a step, and a scale for each row and column. block_stride: of right, from one block of 16 columns to the
    next. Addresses and strides in bytes. zeros: address of a block of zeros.

    The weights of other layers have evicted keys and values from the CPU caches, so the first tile of each block of
    columns prefetches the next block."""
    step_stride = 4 * LANES
    num_tiles = (count + MAX_ROWS - 1) // MAX_ROWS
    block = 0
    while block < num_blocks:
        width = MAX_BLOCKS if num_blocks - block >= MAX_BLOCKS else 1
        column = right + block * block_stride
        for tile in range(num_tiles):
            row = tile * count // num_tiles
            arguments = (
                left + row * left_stride,
                left_stride,
                column,
                block_stride,
                step_stride,
                steps,
                0,
                right_scales + 4 * LANES * block,
                zeros,
                left_scales + 4 * row,
                zeros,
                0,
                out + row * out_stride + 4 * LANES * block,
                out_stride,
                column + (0 if row else width * block_stride),
                0 if row else step_stride,
                (tile + 1) * count // num_tiles - row,
                width,
            )
            if is_short:
                int16_tile(*arguments)
            else:
                float32_tile(*arguments)
        block += width


@kernel
def _mask_row(
    line: int, group: int, num_blocks: int, row: int, begin: int, segment: Longs, window: int, rows: Longs
) -> None:
    """Set the scores of masked places to -inf. line: address of the scores of the first of a row's `group` queries,
    from place `begin` on."""
    start, cached, width = segment[START], segment[CACHED], LANES * num_blocks
    num_seen = cached + row + 1 - begin
    whole = num_seen // LANES
    if whole < num_blocks:
        for query in range(group):
            mask_end(line + 4 * (query * width + LANES * whole), num_blocks - whole, num_seen % LANES)
    scores = carray(float_pointer(line), group * width)
    own = cached - begin
    last = row
    while last >= 0:
        above = rows[start + last, tables.ROW_ABOVE]
        for other in range(max(above + 1, -own), rows[start + last, tables.ROW_RUN]):
            _mask_place(scores, own + other, width)
        last = above
    if window:
        oldest = rows[start + row, tables.ROW_POSITION] - window + 1
        for place in range(min(cached, oldest) - begin):
            _mask_place(scores, place, width)
        if oldest > cached:
            for other in range(max(0, -own), row):
                if rows[start + other, tables.ROW_POSITION] < oldest:
                    _mask_place(scores, own + other, width)


@kernel
def _mask_place(scores: Floats, place: int, width: int) -> None:
    """Mask one place for all queries of a row. width: scores per query."""
    for index in range(place, len(scores), width):
        scores[index] = -np.inf
