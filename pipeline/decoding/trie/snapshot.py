"""Tries on disk: a versioned, checksummed binary file, written aside and renamed into place (docs/trie-format.md).

magic       8 bytes, b"LKTRIE\\r\\n"
version     u32, little-endian like all numbers
header_len  u32
header      UTF-8 JSON: what is needed to lay out the arrays, and their lengths
arrays      int32: used rows of nodes, ring, roots; int64: meta
checksum    32 bytes, SHA-256 of everything before
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.decoding.trie import kernels
from pipeline.decoding.trie.layout import FRESH, empty_arrays
from pipeline.decoding.trie.structure import Trie
from pipeline.errors import UserError

MAGIC = b"LKTRIE\r\n"
VERSION = 1
CHECKSUM_BYTES = 32
_FIXED = struct.Struct("<8sII")


def save_trie(trie: Trie, path: Path) -> None:
    """Write a snapshot. An old file of this name stays until the new one is complete. Raises UserError if it
    cannot be written."""
    arrays = trie.arrays
    used = int(arrays.meta[FRESH])
    header = {
        "branch_length": trie.branch_length,
        "max_bytes": trie.max_bytes,
        "num_nodes": len(arrays.nodes),
        "num_used": used,
        "ring_len": len(arrays.ring),
        "namespaces": trie.roots,
        "num_namespaces_ever": trie.num_namespaces_ever,
    }
    text = json.dumps(header, ensure_ascii=False, sort_keys=True).encode()
    pieces = [
        _FIXED.pack(MAGIC, VERSION, len(text)),
        text,
        np.ascontiguousarray(arrays.nodes[:used], "<i4").tobytes(),
        arrays.ring.astype("<i4", copy=False).tobytes(),
        arrays.meta.astype("<i8", copy=False).tobytes(),
    ]
    checksum = hashlib.sha256()
    try:
        descriptor, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                for piece in pieces:
                    checksum.update(piece)
                    file.write(piece)
                file.write(checksum.digest())
                file.flush()
                os.fsync(file.fileno())
            Path(aside).replace(path)
        except BaseException:
            Path(aside).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UserError(f"The trie cannot be written to {path}: {error.strerror}.") from error


def load_trie(path: Path) -> Trie:
    """The trie of a snapshot, as it was saved. Raises UserError if the file is missing, foreign, of another
    version, or damaged."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"The trie {path} cannot be read: {error.strerror}.") from error
    if len(content) < _FIXED.size + CHECKSUM_BYTES or content[: len(MAGIC)] != MAGIC:
        raise UserError(f"{path} is not a trie snapshot; make one with `lookahead trie build`.")
    _, version, header_len = _FIXED.unpack_from(content)
    # The checksum comes first: a damaged version number is damage, not another version.
    if hashlib.sha256(content[:-CHECKSUM_BYTES]).digest() != content[-CHECKSUM_BYTES:]:
        raise UserError(f"The trie {path} is damaged: its checksum does not match. Restore a copy or build it again.")
    if version != VERSION:
        raise UserError(
            f"The trie {path} has format version {version}; this program reads version {VERSION}. Build it again."
        )
    return _restored(json.loads(content[_FIXED.size : _FIXED.size + header_len]), content, _FIXED.size + header_len)


def _restored(header: dict[str, Any], content: bytes, offset: int) -> Trie:
    trie = Trie.__new__(Trie)
    arrays = empty_arrays(header["num_nodes"], header["branch_length"], header["ring_len"])
    used = header["num_used"]
    arrays.nodes[:used] = np.frombuffer(content, "<i4", used * 8, offset).reshape(used, 8)
    offset += used * 32
    arrays.ring[:] = np.frombuffer(content, "<i4", header["ring_len"], offset)
    offset += header["ring_len"] * 4
    arrays.meta[:] = np.frombuffer(content, "<i8", len(arrays.meta), offset)
    trie.restore(
        header["branch_length"], header["max_bytes"], arrays, header["namespaces"], header["num_namespaces_ever"]
    )
    kernels.rehash(trie.view)
    return trie
