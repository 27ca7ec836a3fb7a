"""The trie as plain dicts: every string, how often it was seen, and where its latest occurrence starts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count


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
