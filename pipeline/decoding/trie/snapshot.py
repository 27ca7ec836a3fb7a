"""Saves and loads tries as versioned binary files with a checksum, written atomically (docs/trie-format.md)."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.decoding.trie.arrays import NODE, STATE, TrieMemory, nodes_within
from pipeline.decoding.trie.integrity import check_arrays
from pipeline.decoding.trie.nodes import fill_buckets
from pipeline.decoding.trie.text_trie import Trie, least_nodes
from pipeline.errors import UserError
from pipeline.files import read_location, write_location

MAGIC = b"LKTRIE\r\n"
VERSION = 2
CHECKSUM_BYTES = 32
# Limit of the numbers in a header. Larger ones could overflow the counters of the kernels.
MAX_COUNT = 1 << 62
_FIXED = struct.Struct("<8sII")


def save_trie(trie: Trie, path: str | Path) -> None:
    """Write a snapshot to a path or an fsspec URL, atomically. Raises UserError if it cannot be written."""
    arrays = trie.arrays
    used = int(arrays.state["fresh"][0])
    nodes = arrays.nodes[:used].copy()
    nodes["previous"] = np.maximum(nodes["previous"], 0)  # without the notes of `nodes.link`
    header = {
        "branch_length": trie.branch_length,
        "max_bytes": trie.max_bytes,
        "num_nodes": len(arrays.nodes),
        "num_used": used,
        "ring_len": len(arrays.text),
        "namespaces": trie.roots,
        "num_namespaces_ever": trie.num_namespaces_ever,
    }
    text = json.dumps(header, sort_keys=True).encode()
    pieces = [
        _FIXED.pack(MAGIC, VERSION, len(text)),
        text,
        nodes.tobytes(),
        arrays.text.tobytes(),
        arrays.state.tobytes(),
    ]
    checksum = hashlib.sha256()
    for piece in pieces:
        checksum.update(piece)
    try:
        write_location(path, [*pieces, checksum.digest()])
    except OSError as error:
        raise UserError(f"The trie cannot be written to {path}: {error.strerror}.") from error


def load_trie(path: str | Path) -> Trie:
    """Load a trie from a snapshot at a path or an fsspec URL. Raises UserError if the file is missing, foreign, of an
    unknown version, or damaged."""
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
    try:
        return _restored(content, _FIXED.size, header_len)
    except (ValueError, RecursionError) as error:
        raise UserError(f"The trie {path} has an unexpected content: {error}. Build it again.") from error


def _restored(content: bytes, offset: int, header_len: int) -> Trie:
    """The trie in a file of the current version whose checksum matches. offset: end of the fixed part. Raises
    ValueError if the content is inconsistent."""
    header = _header(content[offset : offset + header_len])
    branch_length, num_nodes, used, ring_len = (
        _count(header, key) for key in ("branch_length", "num_nodes", "num_used", "ring_len")
    )
    max_bytes = None if header.get("max_bytes") is None else _count(header, "max_bytes")
    _require(used <= num_nodes, f"{used} rows are used of {num_nodes}")
    _require(num_nodes >= least_nodes(branch_length), f"{num_nodes} nodes for a branch length of {branch_length}")
    _require(ring_len == num_nodes, f"{ring_len} slots of text for {num_nodes} nodes")
    _require(max_bytes is None or num_nodes <= nodes_within(max_bytes), f"{num_nodes} nodes in {max_bytes} bytes")
    offset += header_len
    sizes = (used * NODE.itemsize, ring_len * 4, STATE.itemsize, CHECKSUM_BYTES)
    _require(len(content) - offset == sum(sizes), f"{len(content) - offset} bytes follow the header, not {sum(sizes)}")
    memory = TrieMemory(num_nodes, branch_length)
    arrays = memory.arrays
    arrays.nodes[1:used] = np.frombuffer(content, NODE, used, offset)[1:]
    arrays.text[:] = np.frombuffer(content, "<i4", ring_len, offset + sizes[0])
    state = np.frombuffer(content, STATE, 1, offset + sizes[0] + sizes[1])
    _require(state["fresh"][0] == used and state["branch_length"][0] == branch_length, "header and counters differ")
    # The buckets are filled anew.
    for name in set(STATE.names or ()) - {"num_buckets", "num_unsplit"}:
        arrays.state[name] = state[name]
    roots = _roots(header, used)
    check_arrays(arrays, roots, with_buckets=False)
    trie = Trie.__new__(Trie)
    trie.restore(branch_length, max_bytes, memory, roots, _count(header, "num_namespaces_ever"))
    fill_buckets(arrays)
    return trie


def _header(text: bytes) -> dict[str, Any]:
    header = json.loads(text)
    if not isinstance(header, dict):
        raise ValueError("the header is no object")
    return header


def _roots(header: dict[str, Any], used: int) -> dict[str, int]:
    roots = header.get("namespaces")
    if not isinstance(roots, dict) or not all(type(root) is int and 0 < root < used for root in roots.values()):
        raise ValueError("a namespace has no root")
    return roots


def _count(header: dict[str, Any], key: str) -> int:
    value = header.get(key)
    if type(value) is not int or not 0 <= value < MAX_COUNT:
        raise ValueError(f"{key} is {value!r:.40}")
    return value


def _require(condition: bool, fault: str) -> None:
    if not condition:
        raise ValueError(fault)
