"""The trie of texts: insertion, forgetting and lookup. `arrays` describes its memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from pipeline.decoding.tree import IntArray
from pipeline.decoding.trie import insertion
from pipeline.decoding.trie.arrays import BYTES_PER_NODE, bytes_for, new_arrays, nodes_within
from pipeline.decoding.trie.nodes import fill_buckets, locate, new_node

FIRST_NODES = 1 << 10
# At most one root per this number of nodes.
NAMESPACE_SHARE = 16
# Owner of a header in the text that notes a halving of all counts. No row has this number.
PRUNED = (1 << 31) - 1
NOTHING: IntArray = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class TrieStatistics:
    """num_tokens: tokens of text in memory. num_nodes: nodes in use. num_bytes: memory reserved. used_bytes: memory in
    use. num_forgotten: tokens that were inserted and forgotten again."""

    num_tokens: int
    num_nodes: int
    num_namespaces: int
    num_bytes: int
    used_bytes: int
    num_forgotten: int


class Trie:
    """Counts every string of up to `branch_length` tokens in the inserted texts.

    Each text belongs to a namespace. Namespaces share the memory but no strings. With `max_bytes` the memory has a
    fixed size, and the least recently used strings are forgotten; otherwise the trie grows. Not thread safe.
    """

    def __init__(self, branch_length: int, max_bytes: int | None = None) -> None:
        """Raises ValueError if max_bytes cannot hold the suffixes of a single position."""
        least = least_nodes(branch_length)
        num_nodes = max(FIRST_NODES, least) if max_bytes is None else nodes_within(max_bytes)
        if num_nodes < least:
            raise ValueError(
                f"a trie of branch length {branch_length} needs at least {bytes_for(least)} bytes, found {max_bytes}; "
                "raise max_bytes or lower branch_length"
            )
        self.branch_length = branch_length
        self.max_bytes = max_bytes
        # An insertion may replace the arrays.
        self.arrays = new_arrays(num_nodes, branch_length)
        # Row of each namespace's root.
        self.roots: dict[str, int] = {}
        self._scratch: IntArray = np.zeros((2, branch_length + 1), np.int32)
        # The sequence inserted last: its namespace, and its last branch_length - 1 tokens. No tokens if the next ones
        # begin a new sequence in the text.
        self._namespace, self._end, self._is_open = "", NOTHING, False

    def insert(self, tokens: IntArray, namespace: str = "") -> None:
        """Insert a sequence [len]."""
        self._namespace, self._is_open = namespace, False
        self.extend(tokens)

    def extend(self, tokens: IntArray) -> None:
        """Insert further tokens [len] of the sequence that was inserted last."""
        may_forget = self.max_bytes is not None
        tokens = np.asarray(tokens, np.int32)
        while len(tokens):
            root = self._root_for_writing(self._namespace)
            if not self._is_open:
                self._make_room(2)
                insertion.open_sequence(self.arrays, root)
                self._end, self._is_open = NOTHING, True
            text = np.concatenate((self._end, tokens))
            written = int(
                insertion.write_text(tuple(self.arrays), root, text, len(self._end), may_forget, self._scratch)
            )
            text, tokens = text[: len(self._end) + written], tokens[written:]
            self._end = text[max(0, len(text) - self.branch_length + 1) :]
            if len(tokens) and may_forget:  # the beginning of the sequence was forgotten
                self._is_open = False
            elif len(tokens):
                self._double()

    def root(self, namespace: str = "") -> int:
        """Row of the namespace's root, 0 if nothing was inserted in it."""
        return self.roots.get(namespace, 0)

    def count(self, tokens: IntArray, namespace: str = "") -> int:
        """Number of occurrences of a string of 1 .. branch_length tokens; 0 for other lengths."""
        root = self.root(namespace)
        if not root or not len(tokens):
            return 0
        return int(self.arrays.nodes["count"][locate(self.arrays, root, np.asarray(tokens, np.int32), 0, len(tokens))])

    def prune(self) -> None:
        """Halve all counts and drop the strings whose count becomes 0. The text notes it, for snapshots."""
        self._make_room(2)
        insertion.open_sequence(self.arrays, PRUNED)
        insertion.halve_counts(self.arrays)
        self._is_open = False

    def remove(self, namespace: str) -> None:
        """Forget a namespace and its texts."""
        root = self.roots.pop(namespace, 0)
        if root:
            insertion.drop_namespace(self.arrays, root)
            self._is_open = False

    def texts(self) -> Iterator[tuple[str, IntArray]]:
        """Yield the sequences in memory, oldest first: namespace, tokens [len]."""
        names = {root: name for name, root in self.roots.items()}
        for name, tokens in sequences_in(self.held_text(), int(self.arrays.state["oldest_root"][0]), names):
            if name is not None:
                yield name, tokens

    def held_text(self) -> IntArray:
        """[len] the text from its oldest slot to its newest, as in `arrays`."""
        text, state = self.arrays.text, self.arrays.state
        held: IntArray = text[np.arange(state["oldest"][0], state["head"][0]) % len(text)]
        return held

    @property
    def num_nodes(self) -> int:
        """Nodes in use."""
        return int(self.arrays.state["num_nodes"][0])

    @property
    def statistics(self) -> TrieStatistics:
        """Counts the tokens one by one, which takes milliseconds for a large trie."""
        arrays, num_nodes = self.arrays, self.num_nodes
        num_tokens = int(np.count_nonzero(arrays.text > 0))
        return TrieStatistics(
            num_tokens=num_tokens,
            num_nodes=num_nodes,
            num_namespaces=len(self.roots),
            num_bytes=arrays.num_bytes,
            used_bytes=num_nodes * sum(BYTES_PER_NODE[:-1]) + num_tokens * BYTES_PER_NODE[-1],
            num_forgotten=int(arrays.state["oldest"][0]),
        )

    def _root_for_writing(self, namespace: str) -> int:
        """Row of the namespace's root, created if missing."""
        root = self.roots.get(namespace)
        if root is None:
            if len(self.roots) >= len(self.arrays.nodes) // NAMESPACE_SHARE:
                self._drop_some_namespaces()
            self._make_room(0)
            root = int(new_node(self.arrays, 0, len(self.roots), 0, 0, 0))
            self.roots[namespace] = root
        return root

    def _make_room(self, num_slots: int) -> None:
        """Make room for num_slots slots of text and one token more. Only tries without max_bytes grow; their text
        begins in slot 0."""
        while not insertion.make_room(self.arrays, num_slots, self.max_bytes is not None):
            self._double()

    def _double(self) -> None:
        """Double the capacity of a trie without max_bytes, whose text begins in slot 0."""
        old, self.arrays = self.arrays, new_arrays(2 * len(self.arrays.nodes), self.branch_length)
        used = int(old.state["fresh"][0])
        self.arrays.nodes[:used] = old.nodes[:used]
        self.arrays.text[: len(old.text)] = old.text
        self.arrays.state[:] = old.state
        fill_buckets(self.arrays)

    def _drop_some_namespaces(self) -> None:
        """Drop the namespaces without strings; if there are none, the oldest namespace."""
        empty = [name for name, root in self.roots.items() if not self.arrays.nodes["first_child"][root]]
        for name in empty or list(self.roots)[:1]:
            self.remove(name)


def sequences_in(held: IntArray, owner: int, names: Mapping[int, str]) -> Iterator[tuple[str | None, IntArray]]:
    """Yield the sequences of a text, oldest first: namespace, tokens [len]. Where counts were halved: None, no tokens.
    owner: root of the first sequence. names: namespaces by root."""
    begin = 0
    for end in [*np.flatnonzero(held < 0)[::2].tolist(), len(held)]:
        sequence = held[begin:end]
        sequence = (sequence[sequence > 0] - 1).astype(np.int32)
        if len(sequence) and owner in names:
            yield names[owner], sequence
        if end < len(held):
            begin, owner = end + 2, -int(held[end])
            if owner == PRUNED:
                yield None, NOTHING


def least_nodes(branch_length: int) -> int:
    """Least number of rows that holds all suffixes of one position."""
    return branch_length * (branch_length + 8) + 32
