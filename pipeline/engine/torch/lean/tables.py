"""Column numbers of the tables that compiled code receives: sizes of a model, and addresses of its arrays."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Longs = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

# Kinds of weights.
FLOAT32, INT8, BFLOAT16 = range(3)
# Columns of `sizes`.
(
    KIND,
    NUM_THREADS,
    NUM_LAYERS,
    HIDDEN,
    NUM_HEADS,
    NUM_KV_HEADS,
    HEAD_DIM,
    INTERMEDIATE,
    FINAL_NORM,
    NUM_ROWS,
    NUM_WANTED,
    NUM_SIZES,
) = range(12)
# Columns of `matrices`: one row for each of QKV, OUTPUT, GATE_UP and DOWN of every layer, then the output layer.
WEIGHT, NUM_BLOCKS, BLOCK_BYTES, STEPS, START, SCALE, BIAS, NUM_FIELDS = range(8)
QKV, OUTPUT, GATE_UP, DOWN, NUM_MATRICES = range(5)
# Columns of `norms`: address of the weights, 0 for none.
INPUT_NORM, POST_NORM, Q_NORM, K_NORM, NUM_NORMS = range(5)
# Rows of `buffers`, each (address, bytes per row). The row NONE stays 0: no buffer.
X, H, BYTES, ROW_SCALE, QKV_OUT, ATTENDED, GATE_UP_OUT, GATED, GATED_BYTES, LOGITS, MAXIMA, ZEROS, NONE = range(13)
# `cache`: one row for keys and one for values, each (address, bytes of an entry, and bytes from one layer, slot, key
# head and block of 16 places or dims to the next).
KEYS, VALUES = range(2)
CACHE_ADDRESS, CACHE_ENTRY, CACHE_LAYER, CACHE_SLOT, CACHE_HEAD, CACHE_BLOCK, NUM_CACHE_FIELDS = range(7)
# Columns of `rows`.
ROW_SLOT, ROW_POSITION, ROW_PLACE = range(3)
