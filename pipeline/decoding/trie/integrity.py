"""Is a trie whole? Slow and plain; for tests, for snapshots that come from elsewhere, and for whoever changes the
kernels."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.decoding.trie.layout import (
    BRANCH_LENGTH,
    BUCKET_NEXT,
    COUNT,
    FIRST_CHILD,
    FREE,
    FRESH,
    HEAD,
    NEXT,
    NUM_NODES,
    OLDEST,
    PARENT,
    PREVIOUS,
    START,
    TAIL,
    TOKEN,
    TrieArrays,
    view_of,
)
from pipeline.decoding.trie.nodes import bucket_of


def check_arrays(arrays: TrieArrays, roots: Mapping[str, int]) -> None:
    """Raise ValueError, saying where, unless every node is in its place and spelled by the text that it points at."""
    nodes, ring, meta = arrays.nodes, arrays.ring.tolist(), arrays.meta
    oldest, head = int(meta[OLDEST]), int(meta[HEAD])
    _require(0 <= head - oldest <= len(ring), "the ring holds more than it has room for")
    _require(len(set(roots.values())) == len(roots), "two namespaces share a root")
    reached: set[int] = set()
    open_rows: list[tuple[int, list[int]]] = []
    for name, root in roots.items():
        _require(0 < root < meta[FRESH] and nodes[root, PARENT] == 0, f"namespace {name!r} has no root")
        open_rows.append((root, []))
    while open_rows:
        row, string = open_rows.pop()
        _require(row not in reached, f"node {row} is reached twice")
        reached.add(row)
        if string:
            start = int(nodes[row, START])
            _require((start - oldest) % len(ring) < head - oldest, f"node {row} points at text that is forgotten")
            spelled = [ring[(start + place) % len(ring)] - 1 for place in range(len(string))]
            _require(spelled == string, f"node {row} is {string}, its text {spelled}")
            _require(len(string) <= meta[BRANCH_LENGTH], f"node {row} lies too deep")
            _require(nodes[row, COUNT] != TAIL or not nodes[row, FIRST_CHILD], f"node {row} is a tail and has children")
        before, child, total = 0, int(nodes[row, FIRST_CHILD]), 0
        while child:
            _require(0 < child < meta[FRESH] and nodes[child, PARENT] == row, f"node {child} is no child of {row}")
            _require(nodes[child, PREVIOUS] == before, f"node {child} does not follow {before}")
            total += max(int(nodes[child, COUNT]), 1)
            _require(total <= nodes[row, COUNT], f"the children of node {row} were seen more often than itself")
            open_rows.append((child, [*string, int(nodes[child, TOKEN])]))
            before, child = child, int(nodes[child, NEXT])
    _require(len(reached) == meta[NUM_NODES], f"{meta[NUM_NODES]} nodes are in use, {len(reached)} reached")
    _check_free(arrays, reached)
    _check_buckets(arrays, reached)


def _check_free(arrays: TrieArrays, reached: set[int]) -> None:
    free: set[int] = set()
    row = int(arrays.meta[FREE])
    while row:
        _require(row not in free and row not in reached, f"node {row} is free and in use")
        free.add(row)
        row = int(arrays.nodes[row, NEXT])
    _require(len(free) + len(reached) == arrays.meta[FRESH] - 1, "a node is neither free nor in use")


def _check_buckets(arrays: TrieArrays, reached: set[int]) -> None:
    view = view_of(arrays)
    found: set[int] = set()
    for bucket in arrays.heads.nonzero()[0].tolist():
        row = int(arrays.heads[bucket])
        while row:
            _require(row in reached and row not in found, f"node {row} is in a bucket by mistake")
            place = int(bucket_of(view, int(arrays.nodes[row, PARENT]), int(arrays.nodes[row, TOKEN])))
            _require(place == bucket, f"node {row} is in bucket {bucket}, not {place}")
            found.add(row)
            row = int(arrays.nodes[row, BUCKET_NEXT])
    _require(found == reached, "a node is in no bucket")


def _require(true: bool, what: str) -> None:
    if not true:
        raise ValueError(f"the trie is damaged: {what}")
