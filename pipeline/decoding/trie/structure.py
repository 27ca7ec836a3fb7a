"""The trie of texts: what may be inserted, forgotten and looked up. How it lies in memory is told in `layout`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.decoding.tree import IntArray
from pipeline.decoding.trie import kernels
from pipeline.decoding.trie.layout import (
    EPOCH,
    FIRST_CHILD,
    FRESH,
    HEAD,
    NUM_NODES,
    OLDEST,
    TrieArrays,
    empty_arrays,
    nodes_within,
    view_of,
)

# Slots kept for each sequence that is still being written while others are written, too.
RESERVED = 48
FIRST_NODES = 1 << 10
MAX_NAMESPACES_SHARE = 16


@dataclass(frozen=True, slots=True)
class TrieStatistics:
    """num_tokens: tokens of text held. num_nodes: nodes in use. num_bytes: memory of the arrays, used or not. used_bytes: the
    part of it that holds something."""

    num_tokens: int
    num_nodes: int
    num_namespaces: int
    num_bytes: int
    used_bytes: int


class Trie:
    """Every string of up to `branch_length` tokens that occurs in the texts inserted, with its number of occurrences.

    Texts belong to namespaces, which share the memory but never each other's strings. With `max_bytes` all memory is bounded
    from the start, and the least recently used strings give way; without, the trie grows as needed. Not thread safe.
    """

    def __init__(self, branch_length: int = 12, max_bytes: int | None = None, expected_tokens: int = 0) -> None:
        """Raises ValueError if max_bytes cannot hold the strings of even one place in the text."""
        self.branch_length = branch_length
        self.max_bytes = max_bytes
        least = _least_nodes(branch_length)
        if max_bytes is None:
            num_nodes = max(FIRST_NODES, least, 3 * expected_tokens)
        else:
            num_nodes = nodes_within(max_bytes)
            if num_nodes < least:
                raise ValueError(
                    f"a trie of branch length {branch_length} needs at least {_bytes_for(least)} bytes, found {max_bytes}; "
                    "raise max_bytes or lower branch_length"
                )
        self.arrays = empty_arrays(num_nodes, branch_length)
        self.view = view_of(self.arrays)
        self._roots: dict[str, int] = {}
        self._num_open = 0
        self._num_namespaces = 0

    def insert(self, tokens: IntArray, namespace: str = "") -> None:
        """Take in a whole sequence [len]."""
        stream = self.open(namespace)
        stream.append(tokens)
        stream.close()

    def open(self, namespace: str = "") -> TrieStream:
        """Begin a sequence that will come in pieces; each is known as soon as it is appended."""
        self._num_open += 1
        return TrieStream(self, namespace)

    def root(self, namespace: str = "") -> int:
        """The root's row, 0 if nothing was inserted in this namespace."""
        return self._roots.get(namespace, 0)

    def count(self, tokens: IntArray, namespace: str = "") -> int:
        """How often the string [1 .. branch_length] occurred."""
        root = self.root(namespace)
        if not root or not 1 <= len(tokens) <= self.branch_length:
            return 0
        place = kernels.locate(self.view, root, tokens, 0, len(tokens))
        if place == 0:
            return 0
        return 1 if place < 0 else int(self.arrays.nodes[place, 2])

    def prune(self) -> None:
        """Halve all counts and drop the strings whose count falls to nothing."""
        kernels.halve(self.view)

    def remove(self, namespace: str) -> None:
        """Forget a namespace."""
        root = self._roots.pop(namespace, 0)
        if root:
            kernels.drop_namespace(self.view, root)

    @property
    def statistics(self) -> TrieStatistics:
        arrays = self.arrays
        held = int((arrays.ring > 0).sum())
        return TrieStatistics(
            num_tokens=held,
            num_nodes=int(arrays.meta[NUM_NODES]),
            num_namespaces=len(self._roots),
            num_bytes=arrays.num_bytes,
            used_bytes=int(arrays.meta[NUM_NODES]) * 36 + held * 4,
        )

    def _root_for_writing(self, namespace: str) -> int:
        root = self._roots.get(namespace)
        if root is None:
            if len(self._roots) >= len(self.arrays.nodes) // MAX_NAMESPACES_SHARE:
                self._drop_empty_namespaces()
            while not kernels.make_room(self.view, self.max_bytes is not None):
                self._grow()
            self._num_namespaces += 1
            root = int(kernels.new_node(self.view, 0, self._num_namespaces, 0, 0))
            self._roots[namespace] = root
        return root

    def _drop_empty_namespaces(self) -> None:
        """Drop the roots of namespaces of which nothing is left; failing these, the oldest namespace."""
        empty = [name for name, root in self._roots.items() if not self.arrays.nodes[root, FIRST_CHILD]]
        for name in empty or list(self._roots)[:1]:
            self.remove(name)

    def _grow(self) -> None:
        """Double the memory. Only tries that never forget grow, so their text begins in slot 0."""
        old = self.arrays
        new = empty_arrays(2 * len(old.nodes), self.branch_length)
        used = int(old.meta[FRESH])
        new.nodes[:used] = old.nodes[:used]
        new.ring[: len(old.ring)] = old.ring
        new.meta[:] = old.meta
        self.arrays, self.view = new, view_of(new)
        kernels.rehash(self.view)


class TrieStream:
    """A sequence that is being written."""

    def __init__(self, trie: Trie, namespace: str) -> None:
        self._trie = trie
        self._namespace = namespace
        self._closed = False
        self._end = np.empty(0, np.int32)  # last branch_length - 1 tokens
        self._position = -1  # where the next token goes, if the run is still good
        self._limit = -1  # end of the slots reserved for the run
        self._epoch = -1

    def append(self, tokens: IntArray) -> None:
        """Take in the next tokens [len]."""
        trie = self._trie
        may_forget = trie.max_bytes is not None
        tokens = np.asarray(tokens, np.int32)
        done = 0
        while done < len(tokens):
            arrays = trie.arrays
            root = trie._root_for_writing(self._namespace)
            good = self._epoch == arrays.meta[EPOCH] and self._position - len(self._end) >= arrays.meta[OLDEST]
            if not good:
                self._end = self._end[:0]
            if not good or (self._position != arrays.meta[HEAD] and self._position >= self._limit):
                position = int(kernels.open_run(trie.view, root, self._end, self._position, may_forget))
                if position < 0:
                    trie._grow()
                    continue
                self._position, self._limit, self._epoch = position, -1, int(arrays.meta[EPOCH])
            at_head = self._position == arrays.meta[HEAD]
            many = len(tokens) - done if at_head else min(len(tokens) - done, self._limit - self._position)
            text = np.concatenate((self._end, tokens[done : done + many]))
            written = int(kernels.write_run(trie.view, root, text, len(self._end), self._position, may_forget))
            done += written
            self._position += written
            text = text[: len(self._end) + written]
            self._end = text[max(0, len(text) - trie.branch_length + 1) :].copy()
            if written < many:
                trie._grow()
        if trie._num_open > 1 and self._position == trie.arrays.meta[HEAD] and may_forget:
            kernels.reserve(trie.view, RESERVED)
            self._limit = self._position + RESERVED

    def close(self) -> None:
        """The sequence ended. Twice does nothing."""
        if not self._closed:
            self._closed = True
            self._trie._num_open -= 1


def _least_nodes(branch_length: int) -> int:
    """Rows without which the suffixes of one place might not all find room."""
    return branch_length * (branch_length + 5) + 16


def _bytes_for(num_nodes: int) -> int:
    return empty_arrays(num_nodes, 1).num_bytes + 256
