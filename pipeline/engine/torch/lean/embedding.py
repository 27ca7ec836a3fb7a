"""The first phase of a pass: rows of the embedding become the rows of X."""

from __future__ import annotations

import numpy as np
from numba import carray

from pipeline.decoding.tree import IntArray
from pipeline.engine.torch.lean import tables
from pipeline.engine.torch.lean.compilation import kernel
from pipeline.engine.torch.lean.rows import float_pointer, int32_pointer
from pipeline.engine.torch.lean.tables import Longs
from pipeline.engine.torch.lean.thread_team import PHASE_BYTES, work_units
from pipeline.engine.torch.lean.vectors import LANES


@kernel
def embed_rows(thread: int, sizes: Longs, embedding: Longs, token_ids: IntArray, buffers: Longs, counter: int) -> int:
    """Write the embeddings of token_ids [rows] to X, as float32. embedding: see `tables`."""
    num_rows, num_threads = len(token_ids), sizes[tables.NUM_THREADS]
    width = (sizes[tables.HIDDEN] + LANES - 1) // LANES * LANES
    for row in work_units(thread, counter, num_rows, (num_rows + num_threads - 1) // num_threads):
        token = token_ids[row]
        source = embedding[tables.EMBEDDING_ADDRESS] + token // LANES * embedding[tables.EMBEDDING_BLOCK]
        source += token % LANES * embedding[tables.EMBEDDING_TOKEN]
        scale = np.float32(1)
        if embedding[tables.EMBEDDING_SCALE]:
            scale = carray(float_pointer(embedding[tables.EMBEDDING_SCALE] + 4 * token), 1)[0]
        target = buffers[tables.X, 0] + row * buffers[tables.X, 1]
        _unpack(embedding[tables.EMBEDDING_KIND], source, embedding[tables.EMBEDDING_STEP] // 4, target, width, scale)
    return counter + PHASE_BYTES


@kernel
def _unpack(kind: int, source: int, stride: int, target: int, width: int, scale: np.float32) -> None:
    """Write `width` entries as float32. stride: from one step of 4 bytes to the next, in steps."""
    bits, floats = carray(int32_pointer(target), width), carray(float_pointer(target), width)
    steps = carray(int32_pointer(source), width * stride)
    if kind == tables.FLOAT32:
        for index in range(width):
            bits[index] = steps[index * stride]
    elif kind == tables.BFLOAT16:  # the upper half of a float32
        for step in range(width // 2):
            pair = steps[step * stride]
            bits[2 * step], bits[2 * step + 1] = pair << 16, pair & -65536
    else:
        for step in range(width // 4):
            entries = steps[step * stride]
            for part in range(4):
                floats[4 * step + part] = np.float32(np.int32(entries << (24 - 8 * part)) >> 24) * scale
