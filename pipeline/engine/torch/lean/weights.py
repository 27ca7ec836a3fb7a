"""Maps the weights of the lean pass into memory, so that processes share one copy."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.errors import BuildError

# numpy has no bfloat16; its bits are uint16.
_TYPES = {"F32": np.float32, "BF16": np.uint16, "I8": np.int8, "I32": np.int32}


def map_weights(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The tensors of a safetensors file by name, read-only and mapped into memory. Raises BuildError if the file is
    damaged."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
        mapped = np.memmap(path, np.uint8, "r", offset=8 + length)
        tensors = {}
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            first, last = entry["data_offsets"]
            tensors[name] = np.asarray(mapped[first:last]).view(_TYPES[entry["dtype"]]).reshape(entry["shape"])
    except (OSError, ValueError, KeyError, OverflowError, struct.error) as error:
        raise BuildError(
            f"{path} cannot be read as weights; build the engine again with `lookahead engine --force`."
        ) from error
    return tensors


def as_float32(weights: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """The numbers of an array of `map_weights` as float32."""
    if weights.dtype == np.uint16:
        return (weights.astype(np.uint32) << 16).view(np.float32)
    return weights.astype(np.float32)
