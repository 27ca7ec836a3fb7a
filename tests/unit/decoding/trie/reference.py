"""The trie as plain dicts (every string, how often it was seen, where its latest occurrence starts), and plain counts
of what followed the suffixes of a context."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import NamedTuple


class ReferenceTrie:
    def __init__(self, branch_length: int) -> None:
        self.branch_length = branch_length
        self.strings: dict[str, dict[tuple[int, ...], tuple[int, int]]] = {}
        self.serials = count()
        self.namespace = ""
        self.end: list[tuple[int, int]] = []  # (serial, token) of the last tokens of the sequence inserted last

    def insert(self, tokens: Sequence[int], namespace: str = "") -> None:
        self.namespace, self.end = namespace, []
        self.extend(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self.end = [*self.end, (next(self.serials), token)][-self.branch_length :]
            for length in range(1, len(self.end) + 1):
                suffix = self.end[-length:]
                self.visit(self.namespace, tuple(token for _, token in suffix), suffix[0][0])

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
        self.end = []
        for name, strings in self.strings.items():
            self.strings[name] = {string: (times // 2, at) for string, (times, at) in strings.items() if times > 1}

    def remove(self, namespace: str) -> None:
        if self.strings.pop(namespace, None) is not None:
            self.end = []


class Suffix(NamedTuple):
    """A suffix of a context in a text. cell: text, order and class, the place of its escape count. total: what the
    shares of its followers refer to."""

    cell: tuple[int, int, int]
    total: int
    followers: list[int]


def suffixes_in(texts: Sequence[list[int]], context: list[int], branch_length: int) -> Iterator[Suffix]:
    """The suffixes that tell something, from the longest down, and of equally long ones that of the first text."""
    seen = [0] * len(texts)
    for order in range(min(len(context), branch_length - 1), -1, -1):
        suffix = context[len(context) - order :]
        for which, text in enumerate(texts):
            ends = [at + order for at in range(len(text) - order + 1) if text[at : at + order] == suffix]
            times = len(ends) if order else len(text)
            if not ends or (order and times == seen[which]):
                continue
            seen[which] = times
            followers = [text[end] for end in ends if end < len(text)]
            if not followers:
                continue
            differ = len(set(followers)) > 1
            total = times if differ else len(followers)
            yield Suffix((which, order, int(differ)), total, followers)
