"""One pass of a dense decoder in phases, which all threads of a team run together.

    per layer:  norm -> q, k, v -> rotate, write KV -> attention -> output, add -> norm -> gate, up -> silu -> down, add

Before the first layer come the embeddings. After the last one come the final norm, the output layer and the search for
the largest logits, for the rows whose logits are wanted. In int8 each row is quantized by its own largest entry. The
phase that writes a row also quantizes it, except in attention.
"""

from __future__ import annotations

import numpy as np

from pipeline.decoding.tree import FloatArray, IntArray
from pipeline.engine.torch.lean import tables
from pipeline.engine.torch.lean.attention import attend
from pipeline.engine.torch.lean.cache_entries import rotate_rows
from pipeline.engine.torch.lean.compilation import kernel
from pipeline.engine.torch.lean.embedding import embed_rows
from pipeline.engine.torch.lean.node_logits import find_largest
from pipeline.engine.torch.lean.phases import gate_rows, multiply, norm_rows, pack_rows
from pipeline.engine.torch.lean.tables import Floats, Longs
from pipeline.engine.torch.lean.thread_team import PassHandle, enter_pass, leave_pass

_PHASES_PER_LAYER, _OTHER_PHASES = 10, 4


def num_counters(num_layers: int) -> int:
    """Number of counters of a pass: two for each phase, of units taken and of units completed."""
    return 2 * (_PHASES_PER_LAYER * num_layers + _OTHER_PHASES)


@kernel
def run_pass(
    thread: int,
    handle: PassHandle,
    sizes: Longs,
    epsilon: float,
    matrices: Longs,
    norms: Longs,
    windows: Longs,
    embedding: Longs,
    buffers: Longs,
    rotation: Floats,
    cache: Longs,
    token_ids: IntArray,
    rows: Longs,
    segments: Longs,
    wanted: Longs,
    logits: Floats,
    maxima: Floats,
    choices: IntArray,
    top_ids: IntArray,
    top_probabilities: FloatArray,
    scratch: Floats,
    counters: Longs,
) -> None:
    """One thread's part of a pass. Does nothing if the pass is closed. With MATRICES_ONLY in `sizes` it computes only
    the matrices, over what the buffers hold, as the lower bound of a pass's time.

    handle: see `thread_team`. sizes, matrices, norms, embedding, buffers, rows: by the columns in `tables`. windows:
    [layer] sliding window, 0 for none. rotation: [2, position, head_dim / 2] cosines and sines. cache: see `tables`.
    token_ids: [rows]. segments, scratch: see `attention`. wanted: rows whose logits are computed. logits to
    top_probabilities: results, see `node_logits.LeanLogits`. counters: zeros, `num_counters` times `COUNTER_BYTES`."""
    if not enter_pass(handle):
        return
    num_rows = sizes[tables.NUM_ROWS]
    is_packed, is_whole = sizes[tables.KIND] != tables.FLOAT32, not sizes[tables.MATRICES_ONLY]
    h = buffers[tables.BYTES] if is_packed else buffers[tables.H]
    attended = buffers[tables.BYTES] if is_packed else buffers[tables.ATTENDED]
    gated = buffers[tables.GATED_BYTES] if is_packed else buffers[tables.GATED]
    x, zeros, none = buffers[tables.X], buffers[tables.ZEROS], buffers[tables.NONE]
    qkv_out, gate_up_out = buffers[tables.QKV_OUT], buffers[tables.GATE_UP_OUT]
    counter = counters.ctypes.data
    if is_whole:
        counter = embed_rows(thread, sizes, embedding, token_ids, buffers, counter)
    for layer in range(sizes[tables.NUM_LAYERS]):
        table = matrices[tables.NUM_MATRICES * layer : tables.NUM_MATRICES * (layer + 1)]
        if is_whole:
            counter = norm_rows(
                thread, sizes, epsilon, norms[layer, tables.INPUT_NORM], buffers, num_rows, wanted[:0], counter
            )
        counter = multiply(thread, sizes, table[tables.QKV], buffers, h, zeros, qkv_out, none, num_rows, counter)
        if is_whole:
            counter = rotate_rows(thread, sizes, epsilon, layer, norms[layer], buffers, rotation, cache, rows, counter)
            window = windows[layer]
            counter = attend(thread, sizes, layer, window, buffers, cache, rows, segments, scratch, counter)
            if is_packed:
                counter = pack_rows(thread, sizes, buffers, counter)
        counter = multiply(thread, sizes, table[tables.OUTPUT], buffers, attended, x, x, none, num_rows, counter)
        if is_whole:
            counter = norm_rows(
                thread, sizes, epsilon, norms[layer, tables.POST_NORM], buffers, num_rows, wanted[:0], counter
            )
        counter = multiply(
            thread, sizes, table[tables.GATE_UP], buffers, h, zeros, gate_up_out, none, num_rows, counter
        )
        if is_whole:
            counter = gate_rows(thread, sizes, buffers, counter)
        counter = multiply(thread, sizes, table[tables.DOWN], buffers, gated, x, x, none, num_rows, counter)
    num_wanted = sizes[tables.NUM_WANTED]
    if num_wanted:
        if is_whole:
            counter = norm_rows(thread, sizes, epsilon, sizes[tables.FINAL_NORM], buffers, num_wanted, wanted, counter)
        head = matrices[tables.NUM_MATRICES * sizes[tables.NUM_LAYERS]]
        result = np.asarray([logits.ctypes.data, logits.strides[0]])
        largest = np.asarray([maxima.ctypes.data, maxima.strides[0]])
        counter = multiply(thread, sizes, head, buffers, h, zeros, result, largest, num_wanted, counter)
        if is_whole:
            find_largest(
                thread, sizes[tables.NUM_THREADS], logits, maxima, choices, top_ids, top_probabilities, counter
            )
    leave_pass(thread, handle)
