"""Tries on disk: a versioned, checksummed binary file, written aside and renamed into place (docs/trie-format.md)."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.decoding.trie import kernels
from pipeline.decoding.trie.layout import (
    BRANCH_LENGTH,
    FIRST_CHILD,
    FREE,
    FRESH,
    HEAD,
    NEXT,
    NODE_BYTES,
    NUM_COUNTERS,
    NUM_NODES,
    OLDEST,
    OLDEST_ROOT,
    PARENT,
    PREVIOUS,
    START,
    LongArray,
    TrieArrays,
    empty_arrays,
    nodes_within,
    slots_for,
)
from pipeline.decoding.trie.structure import Trie
from pipeline.errors import UserError
from pipeline.files import write_whole

MAGIC = b"LKTRIE\r\n"
VERSION = 1
CHECKSUM_BYTES = 32
# Beyond it a header's number fits no counter of the kernels.
MOST = 1 << 62
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
    for piece in pieces:
        checksum.update(piece)
    try:
        write_whole(path, [*pieces, checksum.digest()])
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
    try:
        return _restored(content, _FIXED.size, header_len)
    except (ValueError, RecursionError) as error:
        raise UserError(f"The trie {path} is not as this program writes it: {error}. Build it again.") from error


def _restored(content: bytes, offset: int, header_len: int) -> Trie:
    """The trie behind the fixed part of a file whose checksum matches. Raises ValueError if its numbers do not fit each
    other: the kernels work with addresses, and would read and write beside the arrays."""
    header = json.loads(content[offset : offset + header_len])
    _require(isinstance(header, dict), "the header is no object")
    branch_length, num_nodes, used, ring_len, num_ever = (
        _count(header, key) for key in ("branch_length", "num_nodes", "num_used", "ring_len", "num_namespaces_ever")
    )
    max_bytes = None if header.get("max_bytes") is None else _count(header, "max_bytes")
    _require(branch_length > 0, "branch_length is 0")
    _require(1 <= used <= num_nodes, f"{used} rows are used of {num_nodes}")
    _require(ring_len >= slots_for(num_nodes, branch_length), f"{ring_len} slots of text for {num_nodes} nodes")
    _require(max_bytes is None or num_nodes <= nodes_within(max_bytes), f"{num_nodes} nodes in {max_bytes} bytes")
    offset += header_len
    sizes = (used * NODE_BYTES, ring_len * 4, NUM_COUNTERS * 8, CHECKSUM_BYTES)
    _require(len(content) - offset == sum(sizes), f"{len(content) - offset} bytes follow the header, not {sum(sizes)}")
    arrays = empty_arrays(num_nodes, branch_length, ring_len)
    arrays.nodes[:used] = np.frombuffer(content, "<i4", used * 8, offset).reshape(used, 8)
    offset += sizes[0]
    arrays.ring[:] = np.frombuffer(content, "<i4", ring_len, offset)
    offset += sizes[1]
    arrays.meta[:] = np.frombuffer(content, "<i8", NUM_COUNTERS, offset)
    roots = header.get("namespaces")
    _check_rows(arrays, used)
    _check_counters(arrays.meta, used, ring_len, branch_length)
    _require(
        isinstance(roots, dict)
        and all(type(root) is int and 0 < root < used and not arrays.nodes[root, PARENT] for root in roots.values()),
        "a namespace has no root",
    )
    trie = Trie.__new__(Trie)
    trie.restore(branch_length, max_bytes, arrays, roots, num_ever)
    kernels.rehash(trie.view)
    return trie


def _check_rows(arrays: TrieArrays, used: int) -> None:
    """Raise ValueError if a node points beyond the rows or the text."""
    ends = {PARENT: used, FIRST_CHILD: used, NEXT: used, PREVIOUS: used, START: len(arrays.ring)}
    for column, end in ends.items():
        values = arrays.nodes[:used, column]
        least = -1 if column == PARENT else 0
        _require(bool((values >= least).all() and (values < end).all()), "a node points beyond the arrays")


def _check_counters(meta: LongArray, used: int, ring_len: int, branch_length: int) -> None:
    _require(meta[FRESH] == used and meta[BRANCH_LENGTH] == branch_length, "header and counters differ")
    _require(0 <= meta[OLDEST] <= meta[HEAD] <= meta[OLDEST] + ring_len, "more text is held than there are slots")
    _require(
        all(0 <= meta[counter] < used for counter in (FREE, OLDEST_ROOT, NUM_NODES)), "a counter lies beyond the rows"
    )


def _count(header: dict[str, Any], key: str) -> int:
    value = header.get(key)
    if type(value) is not int or not 0 <= value < MOST:
        raise ValueError(f"{key} is {value!r:.40}")
    return value


def _require(true: bool, what: str) -> None:
    if not true:
        raise ValueError(what)
