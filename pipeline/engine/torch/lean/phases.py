"""Phases of a pass, each called by every thread. Threads take rows or blocks of columns from a shared counter, whose
address a phase receives. It returns the address of the next phase's counter.

Buffers are rows of a table, (address, bytes per row), because numba would compile a call again for each constant
argument.
"""

from __future__ import annotations

import numpy as np

from pipeline.engine.torch.lean import amx, tables
from pipeline.engine.torch.lean.compilation import kernel
from pipeline.engine.torch.lean.int16_rows import inverse_scale
from pipeline.engine.torch.lean.rows import (
    gate_row,
    largest,
    largest_magnitude,
    quantize_row,
    round_row,
    scale_row,
    store_float,
    sum_of_squares,
)
from pipeline.engine.torch.lean.tables import Longs
from pipeline.engine.torch.lean.thread_team import PHASE_BYTES, work_units
from pipeline.engine.torch.lean.tiles import MAX_BLOCKS, MAX_ROWS, bfloat16_tile, float32_tile, int8_tile
from pipeline.engine.torch.lean.vectors import LANES

# Tasks of a phase per thread.
_TASKS_PER_THREAD = 8


@kernel
def _blocks(count: int) -> int:
    return (count + LANES - 1) // LANES


@kernel
def _chunk(count: int, num_threads: int) -> int:
    return max(1, count // (num_threads * _TASKS_PER_THREAD))


@kernel
def _pack_row(sizes: Longs, buffers: Longs, place: int, row: int, source: int, blocks: int) -> None:
    """Write a row of floats to the buffer `place` as the tiles read it, and for int8 its scale. For float32 do
    nothing."""
    target = buffers[place, 0] + row * buffers[place, 1]
    if sizes[tables.KIND] == tables.BFLOAT16:
        round_row(source, target, blocks)
    elif sizes[tables.KIND] == tables.INT8:
        magnitude = largest_magnitude(source, blocks)
        quantize_row(source, inverse_scale(magnitude, 127), target, blocks)
        store_float(buffers[tables.ROW_SCALE, 0] + 4 * row, magnitude / np.float32(127))


@kernel
def pack_rows(thread: int, sizes: Longs, buffers: Longs, counter: int) -> int:
    """Write the results of attention as input of the output matrix, for int8 and bfloat16."""
    num_rows, source = sizes[tables.NUM_ROWS], buffers[tables.ATTENDED]
    blocks = _blocks(sizes[tables.NUM_HEADS] * sizes[tables.HEAD_DIM])
    for row in work_units(thread, counter, num_rows, _chunk(num_rows, sizes[tables.NUM_THREADS])):
        _pack_row(sizes, buffers, tables.BYTES, row, source[0] + row * source[1], blocks)
    return counter + PHASE_BYTES


@kernel
def norm(source: int, weight: int, target: int, size: int, epsilon: float) -> None:
    """Root mean square norm (arXiv 1910.07467) of a row of `size` entries, padded with zeros."""
    blocks = _blocks(size)
    mean = sum_of_squares(source, blocks) / np.float32(size)
    scale_row(source, np.float32(1) / np.sqrt(mean + np.float32(epsilon)), weight, target, blocks)


@kernel
def norm_rows(
    thread: int,
    sizes: Longs,
    epsilon: float,
    weight: int,
    buffers: Longs,
    num_rows: int,
    places: Longs,
    counter: int,
) -> int:
    """Write the norm of rows of X to H, and as input of a matrix. places: the rows; if empty, the first num_rows."""
    x, h, blocks = buffers[tables.X], buffers[tables.H], _blocks(sizes[tables.HIDDEN])
    for row in work_units(thread, counter, num_rows, _chunk(num_rows, sizes[tables.NUM_THREADS])):
        source = x[0] + (places[row] if len(places) else row) * x[1]
        result = h[0] + row * h[1]
        norm(source, weight, result, sizes[tables.HIDDEN], epsilon)
        _pack_row(sizes, buffers, tables.BYTES, row, result, blocks)
    return counter + PHASE_BYTES


@kernel
def gate_rows(thread: int, sizes: Longs, buffers: Longs, counter: int) -> int:
    """Write silu(gate) * up, also as input of a matrix."""
    num_rows = sizes[tables.NUM_ROWS]
    blocks = _blocks(sizes[tables.INTERMEDIATE])
    gates, gated = buffers[tables.GATE_UP_OUT], buffers[tables.GATED]
    for row in work_units(thread, counter, num_rows, _chunk(num_rows, sizes[tables.NUM_THREADS])):
        gate = gates[0] + row * gates[1]
        result = gated[0] + row * gated[1]
        gate_row(gate, gate + 4 * LANES * blocks, result, blocks)
        _pack_row(sizes, buffers, tables.GATED_BYTES, row, result, blocks)
    return counter + PHASE_BYTES


@kernel
def multiply(
    thread: int,
    sizes: Longs,
    matrix: Longs,
    buffers: Longs,
    source: Longs,
    base: Longs,
    target: Longs,
    maxima: Longs,
    num_rows: int,
    counter: int,
) -> int:
    """target = base + rows of source times a matrix. Each buffer: (address, bytes per row). maxima: buffer for the
    largest entry of each task's columns, or address 0."""
    num_blocks, block_bytes = matrix[tables.NUM_BLOCKS], matrix[tables.BLOCK_BYTES]
    num_tasks = (num_blocks + MAX_BLOCKS - 1) // MAX_BLOCKS
    # Up to one tile of rows, reading the weights decides, and vectors do that faster.
    uses_amx = sizes[tables.USES_AMX] and num_rows > amx.ROWS and matrix[tables.STEPS] % amx.STEPS == 0
    max_rows = amx.ROWS if uses_amx else MAX_ROWS
    if uses_amx:
        amx.configure()
    num_tiles = (num_rows + max_rows - 1) // max_rows
    num_threads = sizes[tables.NUM_THREADS]
    chunk = _chunk(num_tasks, num_threads)
    for task in work_units(thread, counter, num_tasks, chunk):
        # Each tile prefetches its share of the weights of this thread's next task. At the end of a chunk that is the
        # first task of the thread's next chunk, if the other threads at this end take one chunk each meanwhile.
        following = task + 1
        if following % chunk == 0:
            following += -chunk * (1 + num_threads // 2) if thread % 2 else chunk * ((num_threads - 1) // 2)
        ahead = matrix[tables.WEIGHT] + following * MAX_BLOCKS * block_bytes
        width = MAX_BLOCKS if (task + 1) * MAX_BLOCKS <= num_blocks else 1
        for block in range(task * MAX_BLOCKS, min((task + 1) * MAX_BLOCKS, num_blocks), width):
            column = 4 * LANES * block
            for tile in range(num_tiles):
                row = tile * num_rows // num_tiles
                arguments = (
                    source[0] + row * source[1],
                    source[1],
                    matrix[tables.WEIGHT] + block * block_bytes,
                    block_bytes,
                    4 * LANES,
                    matrix[tables.STEPS],
                    matrix[tables.START] + column,
                    matrix[tables.SCALE] + column,
                    matrix[tables.BIAS] + column,
                    buffers[tables.ROW_SCALE, 0] + 4 * row,
                    base[0] + row * base[1] + column,
                    base[1],
                    target[0] + row * target[1] + column,
                    target[1],
                    ahead + tile * block_bytes // num_tiles,
                    4 * LANES // num_tiles,
                    (tile + 1) * num_rows // num_tiles - row,
                    width,
                )
                if uses_amx:
                    amx.amx_tile(*arguments)
                elif sizes[tables.KIND] == tables.INT8:
                    int8_tile(*arguments)
                elif sizes[tables.KIND] == tables.BFLOAT16:
                    bfloat16_tile(*arguments)
                else:
                    float32_tile(*arguments)
        if maxima[0]:
            width = min(MAX_BLOCKS, num_blocks - task * MAX_BLOCKS)
            for row in range(num_rows):
                best = largest(target[0] + row * target[1] + 4 * LANES * MAX_BLOCKS * task, width)
                store_float(maxima[0] + row * maxima[1] + 4 * task, best)
    if uses_amx:
        amx.release()
    return counter + PHASE_BYTES
