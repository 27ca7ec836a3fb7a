"""The trie of texts: insertion, forgetting and lookup. `arrays` describes its memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from pipeline.decoding.tree import IntArray
from pipeline.decoding.trie import insertion
from pipeline.decoding.trie.arrays import NODE_BYTES, TrieArrays, TrieMemory, bytes_for, nodes_within
from pipeline.decoding.trie.integrity import check_arrays
from pipeline.decoding.trie.nodes import locate, new_node

# Text slots reserved for each open sequence while several are open.
RESERVED = 48
FIRST_NODES = 1 << 10
# At most one root per this number of nodes.
NAMESPACE_SHARE = 16
TextPiece = tuple[str, IntArray, int]
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

    def __init__(self, branch_length: int = 12, max_bytes: int | None = None, expected_tokens: int = 0) -> None:
        """expected_tokens: size of the first allocation, without max_bytes. Raises ValueError if max_bytes cannot hold
        the suffixes of a single position."""
        least = least_nodes(branch_length)
        num_nodes = max(FIRST_NODES, least, 3 * expected_tokens) if max_bytes is None else nodes_within(max_bytes)
        if num_nodes < least:
            raise ValueError(
                f"a trie of branch length {branch_length} needs at least {bytes_for(least)} bytes, found {max_bytes}; "
                "raise max_bytes or lower branch_length"
            )
        self.restore(branch_length, max_bytes, TrieMemory(num_nodes, branch_length), {}, 0)

    def restore(
        self,
        branch_length: int,
        max_bytes: int | None,
        memory: TrieMemory,
        roots: dict[str, int],
        num_namespaces_ever: int,
    ) -> None:
        """Set the whole state, for a new trie or from a snapshot."""
        self.branch_length = branch_length
        self.max_bytes = max_bytes
        self.roots = roots
        self.num_namespaces_ever = num_namespaces_ever
        self.num_open = 0
        self.scratch: IntArray = np.zeros((2, branch_length + 1), np.int32)
        self._memory = memory

    @property
    def arrays(self) -> TrieArrays:
        """Arrays for the kernels. Valid until the next insertion, which may replace them."""
        return self._memory.arrays

    def insert(self, tokens: IntArray, namespace: str = "") -> None:
        """Insert a whole sequence [len]."""
        stream = self.open(namespace)
        stream.append(tokens)
        stream.close()

    def open(self, namespace: str = "") -> TrieStream:
        """Open a stream, through which a sequence is inserted piece by piece."""
        return TrieStream(self, namespace)

    def root(self, namespace: str = "") -> int:
        """Row of the namespace's root, 0 if nothing was inserted in it."""
        return self.roots.get(namespace, 0)

    def count(self, tokens: IntArray, namespace: str = "") -> int:
        """Number of occurrences of a string of 1 .. branch_length tokens; 0 for other lengths."""
        root = self.root(namespace)
        if not root or not 1 <= len(tokens) <= self.branch_length:
            return 0
        node = int(locate(self.arrays, root, np.asarray(tokens, np.int32), 0, len(tokens)))
        return int(self.arrays.nodes["count"][node]) if node else 0

    def prune(self) -> None:
        """Halve all counts and drop the strings whose count becomes 0."""
        insertion.halve_counts(self.arrays)

    def remove(self, namespace: str) -> None:
        """Forget a namespace and its texts."""
        root = self.roots.pop(namespace, 0)
        if root:
            insertion.drop_namespace(self.arrays, root)

    def merge_pieces(self, pieces: Iterable[TextPiece], branch_length: int) -> None:
        """Insert pieces of text from `texts` of a trie of this branch length. Strings that it pruned are counted again
        if their text is still in its memory."""
        interrupted: dict[tuple[str, bytes], list[TrieStream]] = {}
        for namespace, tokens, num_repeated in pieces:
            # Any piece with this end may be extended, because no string reaches back beyond the end.
            waiting = interrupted.get((namespace, tokens[:num_repeated].tobytes()))
            stream = waiting.pop() if waiting else None
            if stream is None:
                stream, num_repeated = self.open(namespace), 0
                stream.close()
            stream.append(tokens[num_repeated:])
            end = tokens[max(0, len(tokens) - branch_length + 1) :]
            interrupted.setdefault((namespace, end.tobytes()), []).append(stream)

    def texts(self) -> Iterator[TextPiece]:
        """Yield the pieces of text in memory, oldest first: namespace, tokens [len], and the number of first tokens
        that repeat the end of an earlier piece of the same sequence."""
        text, state = self.arrays.text, self.arrays.state
        names = {root: name for name, root in self.roots.items()}
        return text_pieces(
            text[np.arange(state["oldest"][0], state["head"][0]) % len(text)], int(state["oldest_root"][0]), names
        )

    def check(self) -> None:
        """Raise ValueError with the first fault of `integrity.check_arrays`, if there is one."""
        check_arrays(self.arrays, self.roots)

    @property
    def statistics(self) -> TrieStatistics:
        arrays = self.arrays
        num_tokens = int(np.count_nonzero(arrays.text > 0))
        num_nodes = int(arrays.state["num_nodes"][0])
        return TrieStatistics(
            num_tokens=num_tokens,
            num_nodes=num_nodes,
            num_namespaces=len(self.roots),
            num_bytes=arrays.num_bytes,
            used_bytes=num_nodes * NODE_BYTES + num_tokens * 4,
            num_forgotten=int(arrays.state["oldest"][0]),
        )

    def root_for_writing(self, namespace: str) -> int:
        """Row of the namespace's root, created if missing."""
        root = self.roots.get(namespace)
        if root is None:
            if len(self.roots) >= len(self.arrays.nodes) // NAMESPACE_SHARE:
                self._drop_some_namespaces()
            while not insertion.make_room(self.arrays, 0, self.max_bytes is not None):
                self.grow()
            self.num_namespaces_ever += 1
            root = int(new_node(self.arrays, 0, self.num_namespaces_ever, 0, 0, 0))
            self.roots[namespace] = root
        return root

    def grow(self) -> None:
        """Double the memory. Only tries without max_bytes grow; their text begins in slot 0."""
        self._memory.double()

    def _drop_some_namespaces(self) -> None:
        """Drop the namespaces without strings; if there are none, the oldest namespace."""
        empty = [name for name, root in self.roots.items() if not self.arrays.nodes["first_child"][root]]
        for name in empty or list(self.roots)[:1]:
            self.remove(name)


class TrieStream:
    """Writes one sequence into a trie."""

    def __init__(self, trie: Trie, namespace: str) -> None:
        self._trie = trie
        self._namespace = namespace
        self._is_open = True
        self._end = NOTHING  # last branch_length - 1 tokens of the sequence
        self._position = 0  # of the next token
        self._limit = 0  # end of the reserved slots
        self._epoch = -1  # of the trie when the current piece was opened
        trie.num_open += 1

    def append(self, tokens: IntArray) -> None:
        """Insert the next tokens [len]."""
        trie = self._trie
        may_forget = trie.max_bytes is not None
        tokens = np.asarray(tokens, np.int32)
        done = 0
        while done < len(tokens):
            root = trie.root_for_writing(self._namespace)
            if not self._has_room() and not self._open_piece(root, may_forget):
                trie.grow()
                continue
            room = self._limit - self._position
            many = len(tokens) - done if self._is_last() else min(len(tokens) - done, room)
            text = np.concatenate((self._end, tokens[done : done + many]))
            written = int(
                insertion.write_text(
                    tuple(trie.arrays), root, text, len(self._end), self._position, may_forget, trie.scratch
                )
            )
            done += written
            self._position += written
            text = text[: len(self._end) + written]
            self._end = text[max(0, len(text) - trie.branch_length + 1) :].copy()
            if written < many and not may_forget:
                trie.grow()
        if may_forget and trie.num_open > 1 and self._is_last():
            insertion.reserve(trie.arrays, RESERVED)
            self._limit = self._position + RESERVED

    def close(self) -> None:
        """End the sequence, so that no slots are reserved for it. Calling it again does nothing."""
        if self._is_open:
            self._is_open = False
            self._trie.num_open -= 1

    def _is_last(self) -> bool:
        return self._position == int(self._trie.arrays.state["head"][0])

    def _is_held(self) -> bool:
        """Whether the end of the sequence is still in memory, without a pruning since."""
        state = self._trie.arrays.state
        return bool(self._epoch == state["epoch"][0] and self._position - len(self._end) >= state["oldest"][0])

    def _has_room(self) -> bool:
        return self._is_held() and (self._is_last() or self._position < self._limit)

    def _open_piece(self, root: int, may_forget: bool) -> bool:
        """Open a piece at the head of the ring. False if memory must grow first."""
        trie = self._trie
        if not insertion.make_room(trie.arrays, len(self._end) + 2, may_forget):
            return False
        # Checked after `make_room`, which may have forgotten the end of this sequence.
        if not self._is_held():
            self._end = NOTHING
        self._position = int(insertion.open_piece(trie.arrays, root, self._end, self._position))
        self._limit, self._epoch = 0, int(trie.arrays.state["epoch"][0])
        return True


def least_nodes(branch_length: int) -> int:
    """Least number of rows that holds all suffixes of one position."""
    return branch_length * (branch_length + 8) + 32


def text_pieces(held: IntArray, owner: int, names: Mapping[int, str]) -> Iterator[TextPiece]:
    """Yield the pieces in a trie's text, see `Trie.texts`. held: its slots, oldest first. owner: root of the first
    piece. names: namespace by root."""
    begin, num_repeated = 0, 0
    for end in [*np.flatnonzero(held < 0)[::2].tolist(), len(held)]:
        piece = held[begin:end]
        piece = (piece[piece > 0] - 1).astype(np.int32)
        if len(piece) and owner in names:
            yield names[owner], piece, num_repeated
        if end + 1 < len(held):
            owner, num_repeated, begin = -int(held[end]), -1 - int(held[end + 1]), end + 2
