"""The trie of the retrieval paper (arXiv 2312.12728): bounded, compact, and queried for whole draft trees."""

from __future__ import annotations

from pipeline.decoding.trie.text_trie import Trie, TrieStatistics

__all__ = ["Trie", "TrieStatistics"]
