"""The trie as plain dicts (every string, how often it was seen, where its latest occurrence starts), and plain counts
of what followed the suffixes of a context."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import NamedTuple


class ReferenceStream:
    def __init__(self, trie: ReferenceTrie, namespace: str) -> None:
        self.trie, self.namespace = trie, namespace
        self.end: list[tuple[int, int]] = []  # (serial, token) of the last branch_length - 1 tokens
        self.epoch = -1

    def append(self, tokens: Sequence[int]) -> None:
        if self.epoch != self.trie.epoch:
            self.end, self.epoch = [], self.trie.epoch
        for token in tokens:
            self.end = [*self.end[-(self.trie.branch_length - 1) :], (next(self.trie.serials), token)]
            if self.trie.branch_length == 1:
                self.end = self.end[-1:]
            for length in range(1, len(self.end) + 1):
                suffix = self.end[-length:]
                string = tuple(token for _, token in suffix)
                self.trie.visit(self.namespace, string, suffix[0][0])


class ReferenceTrie:
    def __init__(self, branch_length: int) -> None:
        self.branch_length = branch_length
        self.strings: dict[str, dict[tuple[int, ...], tuple[int, int]]] = {}
        self.serials = count()
        self.epoch = 0

    def open(self, namespace: str) -> ReferenceStream:
        return ReferenceStream(self, namespace)

    def insert(self, tokens: Sequence[int], namespace: str = "") -> None:
        self.open(namespace).append(tokens)

    def visit(self, namespace: str, string: tuple[int, ...], start: int) -> None:
        strings = self.strings.setdefault(namespace, {})
        # A suffix that lost its beginning to pruning does not go on.
        if len(string) == 1 or string[:-1] in strings:
            times, latest = strings.get(string, (0, -1))
            strings[string] = (times + 1, max(latest, start))

    def count(self, tokens: Sequence[int], namespace: str = "") -> int:
        return self.strings.get(namespace, {}).get(tuple(tokens), (0, 0))[0]

    def forget_before(self, serial: int) -> None:
        for strings in self.strings.values():
            for string in [string for string, (_, latest) in strings.items() if latest < serial]:
                del strings[string]

    def prune(self) -> None:
        self.epoch += 1
        for name, strings in self.strings.items():
            self.strings[name] = {string: (times // 2, at) for string, (times, at) in strings.items() if times > 1}

    def remove(self, namespace: str) -> None:
        if self.strings.pop(namespace, None) is not None:
            self.epoch += 1


class Suffix(NamedTuple):
    """A suffix of a context in a text. cell: its order and class, the place of its doubt. total: what the shares of its
    followers refer to. latest: follower of its last occurrence, if any."""

    cell: tuple[int, int]
    total: int
    followers: list[int]
    latest: int | None

    @property
    def differ(self) -> bool:
        return len(set(self.followers)) > 1


def suffixes_in(text: list[int], context: list[int], branch_length: int) -> Iterator[Suffix]:
    """The suffixes that tell something, from the longest down."""
    seen = 0
    for order in range(min(len(context), branch_length - 1), -1, -1):
        suffix = context[len(context) - order :]
        ends = [at + order for at in range(len(text) - order + 1) if text[at : at + order] == suffix]
        times = len(ends) if order else len(text)
        if not ends or (order and times == seen):
            continue
        seen = times
        followers = [text[end] for end in ends if end < len(text)]
        if not followers:
            continue
        differ = len(set(followers)) > 1
        total = times if differ else len(followers)
        size = 0 if total <= 1 else 1 if total <= 2 else 2 if total <= 4 else 3
        latest = text[-1] if order == 0 else text[ends[-1]] if ends[-1] < len(text) else None
        yield Suffix((order, size + 4 * differ), total, followers, latest)
