"""Experiments on draft sources that need no server: replay, trie bench, parallel ranks."""
