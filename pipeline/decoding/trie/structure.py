"""The trie of texts: what may be inserted, forgotten and looked up. How it lies in memory is told in `layout`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pipeline.decoding.tree import IntArray
from pipeline.decoding.trie import kernels, nodes
from pipeline.decoding.trie.integrity import check_arrays
from pipeline.decoding.trie.layout import (
    BUCKETS_PER_NODE,
    COUNT,
    EPOCH,
    FIRST_CHILD,
    FRESH,
    HEAD,
    NODE_BYTES,
    NUM_NODES,
    OLDEST,
    OLDEST_ROOT,
    LongArray,
    TrieArrays,
    bytes_for,
    empty_arrays,
    nodes_within,
    view_of,
)

# Slots kept for each sequence that is still being written while others are written, too.
RESERVED = 48
FIRST_NODES = 1 << 10
# One root of so many nodes at most.
NAMESPACE_SHARE = 16
NOTHING: IntArray = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class TrieStatistics:
    """num_tokens: tokens of text held. num_nodes: nodes in use. num_bytes: memory set aside. used_bytes: the part
    of it that holds something. num_forgotten: tokens that were held once and are no more."""

    num_tokens: int
    num_nodes: int
    num_namespaces: int
    num_bytes: int
    used_bytes: int
    num_forgotten: int


class Trie:
    """Every string of up to `branch_length` tokens that occurs in the texts inserted, with its number of occurrences.

    Texts belong to namespaces, which share the memory but never each other's strings. With `max_bytes` all memory is
    bounded from the start, and the least recently used strings give way; without, the trie grows as needed. Not
    thread safe.

    view, numbers: where the arrays lie, for the kernels; they change when the trie grows.
    """

    def __init__(self, branch_length: int = 12, max_bytes: int | None = None, expected_tokens: int = 0) -> None:
        """Raises ValueError if max_bytes cannot hold the strings of even one place in the text."""
        least = _least_nodes(branch_length)
        num_nodes = max(FIRST_NODES, least, 3 * expected_tokens) if max_bytes is None else nodes_within(max_bytes)
        if num_nodes < least:
            raise ValueError(
                f"a trie of branch length {branch_length} needs at least {bytes_for(least)} bytes, found {max_bytes}; "
                "raise max_bytes or lower branch_length"
            )
        self.restore(branch_length, max_bytes, empty_arrays(num_nodes, branch_length), {}, 0)

    def restore(
        self,
        branch_length: int,
        max_bytes: int | None,
        arrays: TrieArrays,
        roots: dict[str, int],
        num_namespaces_ever: int,
    ) -> None:
        """Become the trie that these values describe."""
        self.branch_length = branch_length
        self.max_bytes = max_bytes
        self.roots = roots
        self.num_namespaces_ever = num_namespaces_ever
        self.num_open = 0
        self._take(arrays)

    def insert(self, tokens: IntArray, namespace: str = "") -> None:
        """Take in a whole sequence [len]."""
        stream = self.open(namespace)
        stream.append(tokens)
        stream.close()

    def open(self, namespace: str = "") -> TrieStream:
        """Begin a sequence that will come in pieces; each is known as soon as it is appended."""
        return TrieStream(self, namespace)

    def root(self, namespace: str = "") -> int:
        """The root's row, 0 if nothing was inserted in this namespace."""
        return self.roots.get(namespace, 0)

    def count(self, tokens: IntArray, namespace: str = "") -> int:
        """How often the string [1 .. branch_length] occurred."""
        root = self.root(namespace)
        if not root or not 1 <= len(tokens) <= self.branch_length:
            return 0
        place = int(nodes.locate(self.view, root, np.asarray(tokens, np.int32), 0, len(tokens)))
        if place < 0:
            # In a tail: the last token was read from the text.
            return 1
        return int(self.arrays.nodes[place, COUNT]) if place else 0

    def prune(self) -> None:
        """Halve all counts and drop the strings whose count falls to nothing."""
        kernels.halve(self.view)

    def remove(self, namespace: str) -> None:
        """Forget a namespace and its texts."""
        root = self.roots.pop(namespace, 0)
        if root:
            kernels.drop_namespace(self.view, root)

    def merge(self, other: Trie) -> None:
        """Insert the texts that another trie holds, oldest first. What it has forgotten does not come back; what it
        has pruned is counted anew as far as its text is held."""
        interrupted: dict[tuple[str, bytes], list[TrieStream]] = {}
        for namespace, tokens, num_repeated in other.texts():
            # Which of several with the same end goes on does not matter: no string reaches back beyond it.
            waiting = interrupted.get((namespace, tokens[:num_repeated].tobytes()))
            stream = waiting.pop() if waiting else None
            if stream is None:
                stream, num_repeated = self.open(namespace), 0
                stream.close()
            stream.append(tokens[num_repeated:])
            end = tokens[max(0, len(tokens) - other.branch_length + 1) :]
            interrupted.setdefault((namespace, end.tobytes()), []).append(stream)

    def texts(self) -> Iterator[tuple[str, IntArray, int]]:
        """The pieces of text held, oldest first: namespace, tokens [len], and how many of them repeat the end of
        an earlier piece of the same sequence, which was interrupted by others."""
        ring, meta = self.arrays.ring, self.arrays.meta
        names = {root: name for name, root in self.roots.items()}
        held = ring[np.arange(int(meta[OLDEST]), int(meta[HEAD])) % len(ring)]
        owner, begin, num_repeated = int(meta[OLDEST_ROOT]), 0, 0
        for end in [*np.flatnonzero(held < 0)[::2].tolist(), len(held)]:
            piece = held[begin:end]
            piece = (piece[piece > 0] - 1).astype(np.int32)
            if len(piece) and owner in names:
                yield names[owner], piece, num_repeated
            if end < len(held):
                owner, num_repeated, begin = -int(held[end]), -1 - int(held[end + 1]), end + 2

    def check(self) -> None:
        """Raise ValueError, saying where, unless the trie is whole: every node in its place, spelled by the text
        it points at."""
        check_arrays(self.arrays, self.roots)

    @property
    def statistics(self) -> TrieStatistics:
        arrays = self.arrays
        num_tokens = int(np.count_nonzero(arrays.ring > 0))
        num_nodes = int(arrays.meta[NUM_NODES])
        return TrieStatistics(
            num_tokens=num_tokens,
            num_nodes=num_nodes,
            num_namespaces=len(self.roots),
            num_bytes=arrays.num_bytes,
            used_bytes=num_nodes * (NODE_BYTES + 4 * BUCKETS_PER_NODE) + num_tokens * 4,
            num_forgotten=int(arrays.meta[OLDEST]),
        )

    def root_for_writing(self, namespace: str) -> int:
        """The root's row, made if need be."""
        root = self.roots.get(namespace)
        if root is None:
            if len(self.roots) >= len(self.arrays.nodes) // NAMESPACE_SHARE:
                self._drop_some_namespaces()
            while not kernels.make_room(self.view, self.max_bytes is not None):
                self.grow()
            self.num_namespaces_ever += 1
            root = int(nodes.new_node(self.view, 0, self.num_namespaces_ever, 0, 0))
            self.roots[namespace] = root
        return root

    def grow(self) -> None:
        """Double the memory. Only tries that never forget grow, so their text begins in slot 0."""
        old = self.arrays
        new = empty_arrays(2 * len(old.nodes), self.branch_length)
        used = int(old.meta[FRESH])
        new.nodes[:used] = old.nodes[:used]
        new.ring[: len(old.ring)] = old.ring
        new.meta[:] = old.meta
        self._take(new)
        kernels.rehash(self.view)

    def _take(self, arrays: TrieArrays) -> None:
        self.arrays = arrays
        self.view = view_of(arrays)
        self.numbers: LongArray = np.asarray(self.view, np.int64)

    def _drop_some_namespaces(self) -> None:
        """Drop the roots of namespaces of which nothing is left; failing these, the oldest namespace."""
        empty = [name for name, root in self.roots.items() if not self.arrays.nodes[root, FIRST_CHILD]]
        for name in empty or list(self.roots)[:1]:
            self.remove(name)


class TrieStream:
    """A sequence that is being written into a trie."""

    def __init__(self, trie: Trie, namespace: str) -> None:
        self._trie = trie
        self._namespace = namespace
        self._is_open = True
        self._end = NOTHING  # its last branch_length - 1 tokens
        self._position = 0  # where its next token goes
        self._limit = 0  # end of the slots reserved for it
        self._epoch = -1  # of the trie, when its run was opened
        trie.num_open += 1

    def append(self, tokens: IntArray) -> None:
        """Take in the next tokens [len]."""
        trie = self._trie
        may_forget = trie.max_bytes is not None
        tokens = np.asarray(tokens, np.int32)
        done = 0
        while done < len(tokens):
            root = trie.root_for_writing(self._namespace)
            if not self._has_room() and not self._open_run(root, may_forget):
                trie.grow()
                continue
            room = self._limit - self._position
            many = len(tokens) - done if self._is_last() else min(len(tokens) - done, room)
            text = np.concatenate((self._end, tokens[done : done + many]))
            written = int(kernels.write_run(trie.view, root, text, len(self._end), self._position, may_forget))
            done += written
            self._position += written
            text = text[: len(self._end) + written]
            self._end = text[max(0, len(text) - trie.branch_length + 1) :].copy()
            if written < many and not may_forget:
                trie.grow()
        if may_forget and trie.num_open > 1 and self._is_last():
            kernels.reserve(trie.view, RESERVED)
            self._limit = self._position + RESERVED

    def close(self) -> None:
        """The sequence ended, so nothing is reserved for it any more. Twice does nothing."""
        if self._is_open:
            self._is_open = False
            self._trie.num_open -= 1

    def _is_last(self) -> bool:
        return self._position == int(self._trie.arrays.meta[HEAD])

    def _is_held(self) -> bool:
        """Whether the end of the sequence is still in the trie, untouched by pruning."""
        meta = self._trie.arrays.meta
        return self._epoch == int(meta[EPOCH]) and self._position - len(self._end) >= int(meta[OLDEST])

    def _has_room(self) -> bool:
        return self._is_held() and (self._is_last() or self._position < self._limit)

    def _open_run(self, root: int, may_forget: bool) -> bool:
        """Go on at the head of the ring; False if memory must grow first."""
        trie = self._trie
        if not kernels.make_room_for_run(trie.view, len(self._end), may_forget):
            return False
        # Asked only now: the room may have been made by forgetting just this.
        if not self._is_held():
            self._end = NOTHING
        self._position = int(kernels.open_run(trie.view, root, self._end, self._position))
        self._limit, self._epoch = 0, int(trie.arrays.meta[EPOCH])
        return True


def _least_nodes(branch_length: int) -> int:
    """Rows without which the suffixes of one place might not all find room."""
    return branch_length * (branch_length + 8) + 32
