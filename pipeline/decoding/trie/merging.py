"""Merges tries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from pipeline.decoding.trie.snapshot import Snapshot
from pipeline.decoding.trie.text_trie import Trie


def merge_tries(into: Trie, tries: Iterable[Trie | Snapshot]) -> None:
    """Insert the texts of tries or snapshots, one after the other, oldest texts first. A text is counted as often as in
    the trie that holds it most often, including `into`. So texts that several have in common are not counted twice."""
    most = Counter((namespace, tokens.tobytes()) for namespace, tokens in into.texts())
    for trie in tries:
        seen: Counter[tuple[str, bytes]] = Counter()
        for namespace, tokens in trie.texts():
            key = namespace, tokens.tobytes()
            seen[key] += 1
            if seen[key] > most[key]:
                most[key] = seen[key]
                into.insert(tokens, namespace)
