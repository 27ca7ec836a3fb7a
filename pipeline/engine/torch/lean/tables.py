"""Tables that compiled code receives, with sizes of a model and addresses of its arrays: numbers of their columns, and
functions that make them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.engine.torch.lean.vectors import LANES

Longs = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Array = npt.NDArray[Any]
# Bytes of a vector and of a cache line.
ALIGNMENT = 64

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
    NUM_ONES,
    FINAL_NORM,
    USES_AMX,
    NUM_ROWS,
    NUM_WANTED,
    MATRICES_ONLY,
    NUM_SIZES,
) = range(15)
# Columns of `matrices`: one row for each of QKV, OUTPUT, GATE_UP and DOWN of every layer, then the output layer.
WEIGHT, NUM_BLOCKS, BLOCK_BYTES, STEPS, START, SCALE, BIAS, NUM_FIELDS = range(8)
QKV, OUTPUT, GATE_UP, DOWN, NUM_MATRICES = range(5)
# Columns of `embedding`: kind of its entries, address, and bytes from one step of a token's row to the next, from one
# token to the next, and from one block of 16 tokens to the next. A step is 4 bytes. EMBEDDING_SCALE is the address of a
# float32 per token, 0 for none.
EMBEDDING_KIND, EMBEDDING_ADDRESS, EMBEDDING_STEP, EMBEDDING_TOKEN, EMBEDDING_BLOCK, EMBEDDING_SCALE = range(6)
# Columns of `norms`: address of the weights, 0 for none.
INPUT_NORM, POST_NORM, Q_NORM, K_NORM, NUM_NORMS = range(5)
# Rows of `buffers`, each (address, bytes per row). The row NONE stays 0: no buffer.
X, H, BYTES, ROW_SCALE, QKV_OUT, ATTENDED, GATE_UP_OUT, GATED, GATED_BYTES, ZEROS, NONE = range(11)
# `cache`: one row for keys, for values, and for the scales of each. Columns: address, bytes of an entry, largest
# integer, and the strides in bytes of layers, slots, key heads, and blocks of 16 places (keys) or dims (values).
KEYS, VALUES, KEY_SCALES, VALUE_SCALES = range(4)
(
    CACHE_ADDRESS,
    CACHE_ENTRY,
    CACHE_RANGE,
    CACHE_LAYER,
    CACHE_SLOT,
    CACHE_HEAD,
    CACHE_BLOCK,
    NUM_CACHE_FIELDS,
) = range(8)
# Columns of `rows`. A run is a part of a path whose rows are consecutive: the parent of a row is the row before it.
# ROW_RUN is the first row of the run that ends with this row, ROW_ABOVE the parent of that first row (-1: the cached
# context). Both count rows within a segment.
ROW_SLOT, ROW_POSITION, ROW_PLACE, ROW_RUN, ROW_ABOVE, NUM_ROW_FIELDS = range(6)


def aligned(shape: tuple[int, ...], kind: Any, allocate: Callable[[int, Any], Array] = np.zeros) -> Array:
    """An array that begins at a cache line, because a vector that crosses two lines takes two loads. allocate: np.zeros
    or np.empty."""
    size = prod(shape)
    memory = allocate(size + ALIGNMENT, kind)
    first = -memory.ctypes.data % ALIGNMENT // memory.itemsize
    return memory[first : first + size].reshape(shape)


def matrix_table(tensors: Mapping[str, Array], num_layers: int) -> Longs:
    """The table `matrices`. tensors: of the weights' file."""
    places: list[tuple[str, Any]] = [
        (name, layer) for layer in range(num_layers) for name in ("qkv", "output", "gate_up", "down")
    ]
    table = np.zeros((len(places) + 1, NUM_FIELDS), np.int64)
    for entry, (name, place) in zip(table, [*places, ("head", ...)], strict=True):
        weight = tensors[f"{name}.weight"][place]
        entry[WEIGHT], entry[BLOCK_BYTES] = weight.ctypes.data, weight[0].nbytes
        entry[NUM_BLOCKS], entry[STEPS] = weight.shape[:2]
        for column, field in ((START, "start"), (SCALE, "scale"), (BIAS, "bias")):
            if (values := tensors.get(f"{name}.{field}")) is not None:
                entry[column] = values[place].ctypes.data
    return table


def embedding_table(tensors: Mapping[str, Array], kind: int) -> Longs:
    """The table `embedding`. kind: of the weights. A model without an embedding of its own shares the output layer's
    weights."""
    if "embedding" not in tensors:
        weight, scale = tensors["head.weight"], tensors.get("head.scale")
        steps = 4 * LANES, 4, weight[0].nbytes
        return np.asarray([kind, weight.ctypes.data, *steps, 0 if scale is None else scale.ctypes.data], np.int64)
    embedding = tensors["embedding"]
    own_kind = BFLOAT16 if embedding.dtype == np.uint16 else FLOAT32
    row_bytes = embedding.strides[0]
    return np.asarray([own_kind, embedding.ctypes.data, 4, row_bytes, LANES * row_bytes, 0], np.int64)


def norm_table(tensors: Mapping[str, Array], num_layers: int) -> Longs:
    """The table `norms`."""
    table = np.zeros((num_layers, NUM_NORMS), np.int64)
    for column, name in enumerate(("input_norm", "post_norm", "q_norm", "k_norm")):
        if name in tensors:
            table[:, column] = [weights.ctypes.data for weights in tensors[name]]
    return table


def rotation_table(inverse_frequencies: Array, num_positions: int, scale: float) -> Floats:
    """[2, position, head_dim / 2] cosines and sines of the rotary embedding. inverse_frequencies: [head_dim / 2]."""
    angles = np.arange(num_positions, dtype=np.float32)[:, None] * inverse_frequencies[None, :]
    # numpy's float32 functions have other results on processors without AVX2.
    wide = angles.astype(np.float64)
    result: Floats = np.stack([np.cos(wide), np.sin(wide)]).astype(np.float32) * np.float32(scale)
    return result
