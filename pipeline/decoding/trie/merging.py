"""Merges tries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from pipeline.decoding.trie.text_trie import TextPiece, Trie

_Counts = Counter[tuple[str, bytes]]


def merge_tries(into: Trie, tries: Iterable[Trie]) -> None:
    """Insert the texts of tries, trie by trie, oldest first. A text is counted as often as in the trie that holds it
    most often, including `into`. So texts that several tries have in common are not counted twice."""
    most: _Counts = Counter(_key(piece) for piece in into.texts())
    for trie in tries:
        into.merge_pieces(_missing(trie.texts(), most), trie.branch_length)


def _missing(pieces: Iterable[TextPiece], most: _Counts) -> Iterator[TextPiece]:
    """The pieces that occur more often than in any earlier trie. most: their highest count so far; updated."""
    seen: _Counts = Counter()
    for piece in pieces:
        key = _key(piece)
        seen[key] += 1
        if seen[key] > most[key]:
            most[key] = seen[key]
            yield piece


def _key(piece: TextPiece) -> tuple[str, bytes]:
    namespace, tokens, _ = piece
    return namespace, tokens.tobytes()
