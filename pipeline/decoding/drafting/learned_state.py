"""Learned state of a drafter, kept across restarts of a server: a folder with one file per source and one per drafter.

    trie.snapshot       the shared trie, in the format of the `lookahead trie` commands
    trie.state          the weights of its suffixes
    recycling.state     the table of candidates
    <name>.state        mixing weights and calibration of the drafter of that name (engine or BLS model)

Files are written atomically. The bounds of the sources limit their sizes. A file that is damaged, or of another model
or other settings, is reported and ignored.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.errors import UserError
from pipeline.files import read_arrays, write_atomically

# End of the names of files with the state of a drafter.
STATE = ".state"
FINGERPRINT = "fingerprint"
Arrays = Mapping[str, npt.NDArray[Any]]


def save_arrays(path: Path, arrays: Arrays, fingerprint: str) -> None:
    """Write arrays to a file atomically. fingerprint: of the model and its tokenizer. Raises UserError if the file
    cannot be written."""
    content = io.BytesIO()
    named = {FINGERPRINT: np.frombuffer(fingerprint.encode(), np.uint8), **arrays}
    np.savez(content, **named)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, [content.getvalue()])
    except OSError as error:
        raise UserError(f"Learned state cannot be written to {path}: {error.strerror}.") from error


def load_arrays(path: Path, like: Arrays, fingerprint: str) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays that `save_arrays` wrote. like: arrays with the required names, shapes and types. Raises
    UserError if the file is missing, foreign, damaged, or of another model or other settings."""
    try:
        arrays = read_arrays(path)  # the format has a checksum of each array
    except OSError as error:
        raise UserError(f"Learned state {path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise UserError(f"{path} is not a learned state of this version, or is damaged: {error}. Delete it.") from error
    if arrays.pop(FINGERPRINT, np.empty(0, np.uint8)).tobytes() != fingerprint.encode():
        raise UserError(f"{path} was learned with another model or tokenizer. Delete it.")
    shapes = {name: (array.shape, array.dtype) for name, array in arrays.items()}
    if shapes != {name: (array.shape, array.dtype) for name, array in like.items()}:
        raise UserError(f"{path} was learned with other draft sources or other settings. Delete it.")
    return arrays
