"""Saves the texts of tries as versioned binary files with a checksum, written atomically (docs/trie-format.md).

A loaded trie is built from its texts, so no content of a file can make it inconsistent."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pipeline.decoding.tree import IntArray
from pipeline.decoding.trie.text_trie import Trie, sequences_in
from pipeline.errors import UserError
from pipeline.files import read_location, write_location

MAGIC = b"LKTRIE\r\n"
VERSION = 3
CHECKSUM_BYTES = 32
# Limit of the numbers in a header. Larger ones could overflow the counters of the kernels.
MAX_COUNT = 1 << 62
_FIXED = struct.Struct("<8sII")


class Snapshot(NamedTuple):
    """The content of a file. sequences: see `text_trie.sequences_in`. num_forgotten: see `TrieStatistics`."""

    branch_length: int
    max_bytes: int | None
    num_forgotten: int
    sequences: list[tuple[str | None, IntArray]]

    def texts(self) -> Iterator[tuple[str, IntArray]]:
        """Yield namespace and tokens [len] of the sequences, oldest first."""
        return ((name, tokens) for name, tokens in self.sequences if name is not None)


def save_trie(trie: Trie, path: str | Path) -> None:
    """Write a snapshot to a path or an fsspec URL, atomically. Raises UserError if it cannot be written."""
    header = {
        "branch_length": trie.branch_length,
        "max_bytes": trie.max_bytes,
        "namespaces": trie.roots,
        "num_forgotten": trie.statistics.num_forgotten,
        "oldest_root": int(trie.arrays.state["oldest_root"][0]),
    }
    text = json.dumps(header, sort_keys=True).encode()
    content = _FIXED.pack(MAGIC, VERSION, len(text)) + text + trie.held_text().tobytes()
    try:
        write_location(path, [content, hashlib.sha256(content).digest()])
    except OSError as error:
        raise UserError(f"The trie cannot be written to {path}: {error.strerror}.") from error


def load_trie(path: str | Path) -> Trie:
    """Build a trie from a snapshot. Raises UserError as `read_snapshot`, and if its limits permit no trie."""
    snapshot = read_snapshot(path)
    try:
        trie = Trie(snapshot.branch_length, snapshot.max_bytes)
    except (ValueError, MemoryError) as error:
        raise UserError(f"The trie {path} has impossible limits: {error}. Build it again.") from error
    if snapshot.max_bytes is not None:
        trie.arrays.state["head"] = trie.arrays.state["oldest"] = snapshot.num_forgotten
    for name, tokens in snapshot.sequences:
        if name is None:
            trie.prune()
        else:
            trie.insert(tokens, name)
    return trie


def read_snapshot(path: str | Path) -> Snapshot:
    """Read a snapshot at a path or an fsspec URL. Raises UserError if the file is missing, foreign, of an unknown
    version, or damaged."""
    try:
        content = read_location(path)
    except OSError as error:
        raise UserError(f"The trie {path} cannot be read: {error.strerror}.") from error
    if len(content) < _FIXED.size + CHECKSUM_BYTES or content[: len(MAGIC)] != MAGIC:
        raise UserError(f"{path} is not a trie snapshot; make one with `lookahead trie build`.")
    _, version, header_len = _FIXED.unpack_from(content)
    # The checksum is compared before the version, because the version number itself may be damaged.
    if hashlib.sha256(content[:-CHECKSUM_BYTES]).digest() != content[-CHECKSUM_BYTES:]:
        raise UserError(f"The trie {path} is damaged: its checksum does not match. Restore a copy or build it again.")
    if version != VERSION:
        raise UserError(
            f"The trie {path} has format version {version}; this program reads version {VERSION}. Build it again with "
            "`lookahead trie build`."
        )
    begin = _FIXED.size + header_len
    try:
        header = json.loads(content[_FIXED.size : begin])
        max_bytes = header["max_bytes"]
        text, names = content[begin:-CHECKSUM_BYTES], {root: name for name, root in header["namespaces"].items()}
        return Snapshot(
            _count(header["branch_length"], least=1),
            None if max_bytes is None else _count(max_bytes),
            _count(header["num_forgotten"]),
            list(sequences_in(np.frombuffer(text, "<i4"), header["oldest_root"], names)),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UserError(f"The trie {path} has an unexpected content: {error}. Build it again.") from error


def _count(value: object, least: int = 0) -> int:
    if type(value) is not int or not least <= value < MAX_COUNT:
        raise ValueError(f"{value!r:.40} is no count")
    return value
