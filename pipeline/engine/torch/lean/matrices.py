"""The matrices of a pass and nothing else: the floor that a whole pass is measured against."""

from __future__ import annotations

from pipeline.engine.torch.lean.compilation import kernel
from pipeline.engine.torch.lean.crew import COUNTER_BYTES
from pipeline.engine.torch.lean.phases import Longs, multiply
from pipeline.engine.torch.lean.tables import (
    ATTENDED,
    BYTES,
    DOWN,
    GATE_UP,
    GATE_UP_OUT,
    GATED,
    GATED_BYTES,
    INT8,
    KIND,
    LOGITS,
    NONE,
    NUM_LAYERS,
    NUM_MATRICES,
    NUM_ROWS,
    NUM_WANTED,
    OUTPUT,
    QKV,
    QKV_OUT,
    ZEROS,
    H,
    X,
)

_PHASE_BYTES = 2 * COUNTER_BYTES


@kernel
def multiply_all(sizes: Longs, matrices: Longs, buffers: Longs, counters: Longs) -> None:
    """One thread's part. For the arguments see `forward.run_pass`; what the buffers hold does not matter."""
    is_int8 = sizes[KIND] == INT8
    h = buffers[BYTES] if is_int8 else buffers[H]
    attended = buffers[BYTES] if is_int8 else buffers[ATTENDED]
    gated = buffers[GATED_BYTES] if is_int8 else buffers[GATED]
    # Written beside, not added to X, which would grow from call to call.
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
