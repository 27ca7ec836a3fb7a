"""One pass of a dense decoder in phases, which all threads of a crew run together.

    per layer:  norm -> q, k, v -> rotate, write KV -> attention -> output, add -> norm -> gate, up -> silu -> down, add

After the last layer come the final norm and the output layer, for the rows whose logits are wanted. In int8 each row is
quantised by its own largest entry. The phase that writes a row also quantises it, except in attention.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipeline.engine.torch.lean.attention import attend
from pipeline.engine.torch.lean.compilation import kernel
from pipeline.engine.torch.lean.crew import COUNTER_BYTES, Turn, enters, leaves
from pipeline.engine.torch.lean.phases import (
    Floats,
    Longs,
    gate_rows,
    multiply,
    norm_rows,
    quantize_rows,
    rotate_rows,
)
from pipeline.engine.torch.lean.tables import (
    ATTENDED,
    BYTES,
    DOWN,
    FINAL_NORM,
    GATE_UP,
    GATE_UP_OUT,
    GATED,
    GATED_BYTES,
    HEAD_DIM,
    INPUT_NORM,
    INT8,
    KIND,
    LOGITS,
    MAXIMA,
    NONE,
    NUM_HEADS,
    NUM_KV_HEADS,
    NUM_LAYERS,
    NUM_MATRICES,
    NUM_ROWS,
    NUM_WANTED,
    OUTPUT,
    POST_NORM,
    QKV,
    QKV_OUT,
    ZEROS,
    H,
    X,
)

_PHASES_PER_LAYER, _LAST_PHASES = 10, 2
_PHASE_BYTES = 2 * COUNTER_BYTES


def num_counters(num_layers: int) -> int:
    """Number of counters of a pass: two for each phase, of units taken and of units completed."""
    return 2 * (_PHASES_PER_LAYER * num_layers + _LAST_PHASES)


@kernel
def run_pass(
    thread: int,
    turn: Turn,
    sizes: Longs,
    epsilon: float,
    matrices: Longs,
    norms: Longs,
    windows: Longs,
    buffers: Longs,
    rotation: Floats,
    keys: Floats,
    values: Floats,
    rows: Longs,
    segments: Longs,
    visible: npt.NDArray[np.uint8],
    wanted: Longs,
    scratch: Floats,
    counters: Longs,
) -> None:
    """One thread's part of a pass. Does nothing if the pass is closed.

    turn: see `crew`. sizes, matrices, norms, buffers, rows: by the columns in `tables`. windows: [layer] sliding
    window, 0 for none. rotation: [2, position, head_dim / 2] cosines and sines. keys, values, segments, visible,
    scratch: see `attention`. wanted: rows whose logits are computed. counters: zeros, `num_counters` times
    `COUNTER_BYTES`."""
    if not enters(turn):
        return
    num_rows = sizes[NUM_ROWS]
    is_int8 = sizes[KIND] == INT8
    h = buffers[BYTES] if is_int8 else buffers[H]
    attended = buffers[BYTES] if is_int8 else buffers[ATTENDED]
    gated = buffers[GATED_BYTES] if is_int8 else buffers[GATED]
    x, zeros, none = buffers[X], buffers[ZEROS], buffers[NONE]
    counter = counters.ctypes.data
    for layer in range(sizes[NUM_LAYERS]):
        table = matrices[NUM_MATRICES * layer : NUM_MATRICES * (layer + 1)]
        norm_rows(sizes, epsilon, norms[layer, INPUT_NORM], buffers, num_rows, wanted[:0], counter)
        counter += _PHASE_BYTES
        multiply(sizes, table[QKV], buffers, h, zeros, buffers[QKV_OUT], none, num_rows, counter)
        counter += _PHASE_BYTES
        rotate_rows(sizes, epsilon, layer, norms[layer], buffers, rotation, keys, values, rows, counter)
        counter += _PHASE_BYTES
        attend(
            thread,
            layer,
            windows[layer],
            sizes[NUM_HEADS] // sizes[NUM_KV_HEADS],
            sizes[HEAD_DIM],
            buffers[QKV_OUT],
            buffers[ATTENDED],
            keys,
            values,
            rows,
            segments,
            visible,
            scratch,
            counter,
        )
        counter += _PHASE_BYTES
        if is_int8:
            quantize_rows(sizes, buffers, counter)
            counter += _PHASE_BYTES
        multiply(sizes, table[OUTPUT], buffers, attended, x, x, none, num_rows, counter)
        counter += _PHASE_BYTES
        norm_rows(sizes, epsilon, norms[layer, POST_NORM], buffers, num_rows, wanted[:0], counter)
        counter += _PHASE_BYTES
        multiply(sizes, table[GATE_UP], buffers, h, zeros, buffers[GATE_UP_OUT], none, num_rows, counter)
        counter += _PHASE_BYTES
        gate_rows(sizes, buffers, counter)
        counter += _PHASE_BYTES
        multiply(sizes, table[DOWN], buffers, gated, x, x, none, num_rows, counter)
        counter += _PHASE_BYTES
    num_wanted = sizes[NUM_WANTED]
    if num_wanted:
        norm_rows(sizes, epsilon, sizes[FINAL_NORM], buffers, num_wanted, wanted, counter)
        counter += _PHASE_BYTES
        head = matrices[NUM_MATRICES * sizes[NUM_LAYERS]]
        multiply(sizes, head, buffers, h, zeros, buffers[LOGITS], buffers[MAXIMA], num_wanted, counter)
    leaves(thread, turn)


@kernel
def multiply_all(thread: int, turn: Turn, sizes: Longs, matrices: Longs, buffers: Longs, counters: Longs) -> None:
    """One thread's part of the matrices of a pass alone, as the lower bound of a pass's time. For the arguments see
    `run_pass`. The content of the buffers does not matter."""
    if not enters(turn):
        return
    is_int8 = sizes[KIND] == INT8
    h = buffers[BYTES] if is_int8 else buffers[H]
    attended = buffers[BYTES] if is_int8 else buffers[ATTENDED]
    gated = buffers[GATED_BYTES] if is_int8 else buffers[GATED]
    # The results are not added to X, whose values would grow with every call.
    zeros, none, beside = buffers[ZEROS], buffers[NONE], buffers[H] if is_int8 else buffers[X]
    num_rows, counter = sizes[NUM_ROWS], counters.ctypes.data
    for layer in range(sizes[NUM_LAYERS]):
        table = matrices[NUM_MATRICES * layer : NUM_MATRICES * (layer + 1)]
        multiply(sizes, table[QKV], buffers, h, zeros, buffers[QKV_OUT], none, num_rows, counter)
        counter += _PHASE_BYTES
        multiply(sizes, table[OUTPUT], buffers, attended, zeros, beside, none, num_rows, counter)
        counter += _PHASE_BYTES
        multiply(sizes, table[GATE_UP], buffers, h, zeros, buffers[GATE_UP_OUT], none, num_rows, counter)
        counter += _PHASE_BYTES
        multiply(sizes, table[DOWN], buffers, gated, zeros, beside, none, num_rows, counter)
        counter += _PHASE_BYTES
    head = matrices[NUM_MATRICES * sizes[NUM_LAYERS]]
    multiply(sizes, head, buffers, h, zeros, buffers[LOGITS], none, sizes[NUM_WANTED], counter)
    leaves(thread, turn)
