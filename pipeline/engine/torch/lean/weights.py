"""The file of the lean pass's weights, in the safetensors format. It is mapped into memory, so that processes share one
copy. Its data begin at a multiple of `ALIGNMENT` bytes."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.engine.torch.lean.tables import ALIGNMENT, Array, Floats

# numpy has no bfloat16; its bits are uint16.
_TYPES = {"F32": np.float32, "BF16": np.uint16, "I8": np.int8, "I32": np.int32}


def save_weights(
    path: Path, tensors: Mapping[str, Array], num_layers: int, layer_tensors: Callable[[int], Mapping[str, Array]]
) -> None:
    """Write tensors, and those of all layers stacked, with only one layer in memory. layer_tensors: returns those of a
    layer; their names and shapes are the same for every layer."""
    first = layer_tensors(0)
    shapes = {name: array.shape for name, array in tensors.items()}
    shapes |= {name: (num_layers, *array.shape) for name, array in first.items()}
    names = {np.dtype(kind): name for name, kind in _TYPES.items()}
    header: dict[str, Any] = {}
    end = 0
    for name, array in {**tensors, **first}.items():
        begin, end = end, end + int(np.prod(shapes[name])) * array.itemsize
        header[name] = {"dtype": names[array.dtype], "shape": shapes[name], "data_offsets": (begin, end)}
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        data = file.tell()

        def write(name: str, array: Array, place: int) -> None:
            file.seek(data + header[name]["data_offsets"][0] + place * array.nbytes)
            file.write(np.ascontiguousarray(array).data)

        for name, array in tensors.items():
            write(name, array, 0)
        for layer in range(num_layers):
            for name, array in (layer_tensors(layer) if layer else first).items():
                write(name, array, layer)


def map_weights(path: Path) -> dict[str, Array]:
    """The tensors of a file of `save_weights` by name, read-only and mapped into memory."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    mapped = np.memmap(path, np.uint8, "r", offset=8 + length)
    tensors = {}
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        tensors[name] = np.asarray(mapped[first:last]).view(_TYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def as_float32(weights: Array) -> Floats:
    """The numbers of an array of `map_weights` as float32."""
    if weights.dtype == np.uint16:
        return (weights.astype(np.uint32) << 16).view(np.float32)
    return weights.astype(np.float32)
