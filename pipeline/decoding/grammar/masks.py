"""Masks of the tokens that a grammar permits after the nodes of a draft tree, computed in a thread during the target's
pass."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np

from pipeline.decoding.tree import ROOT, BoolArray, DraftTree, IntArray, children_of, path_to

if TYPE_CHECKING:
    from pipeline.decoding.grammar.matcher import Matcher

_WORD_BITS = 32
_worker = ThreadPoolExecutor(1, "grammar-masks")


class TokenMask:
    """The tokens that may come next. words: [ceil(vocab / 32)] one bit per token, the lowest bit first."""

    __slots__ = ("only", "words")

    def __init__(self, words: IntArray) -> None:
        self.words = words
        self.only = _only_token(words)

    def permits(self, token: int) -> bool:
        return bool((int(self.words[token // _WORD_BITS]) >> (token % _WORD_BITS)) & 1)

    def forbidden(self, vocab_size: int) -> BoolArray:
        """[vocab] True for tokens that may not come next."""
        bits = np.unpackbits(self.words.view(np.uint8), bitorder="little")[:vocab_size]
        forbidden: BoolArray = bits == 0
        return forbidden


class TreeMasks:
    """Masks after the root and after every node of a tree. The thread computes them in the tree's order, likely nodes
    first, until the pass ends. The others are computed on demand. Timing does not affect the masks.

    seconds: time spent on masks, in the thread and after the pass.
    """

    def __init__(self, matcher: Matcher, tree: DraftTree) -> None:
        """Start the computation. Until `finish`, no other code may use the matcher."""
        self.seconds = 0.0
        self._matcher = matcher
        self._tree = tree
        self._masks: dict[int, TokenMask] = {}
        self._stop = threading.Event()
        self._job = _worker.submit(self._compute)

    def finish(self) -> None:
        """Stop the computation after the pass; finished masks are kept."""
        self._stop.set()
        wait((self._job,))

    def at(self, node: int) -> TokenMask:
        """The mask after a node, or after the root (`ROOT`). Raises RequestError if the grammar permits no continuation
        there, or the error of the computation, which thus ends this request only."""
        self._job.result()
        mask = self._masks.get(node)
        if mask is None:
            started = time.perf_counter()
            path = [] if node == ROOT else self._tree.token_ids[path_to(self._tree, node)].tolist()
            mask = self._masks[node] = self._matcher.mask_after(path)
            self.seconds += time.perf_counter() - started
        return mask

    def _compute(self) -> None:
        started = time.perf_counter()
        tokens, children = self._tree.token_ids.tolist(), children_of(self._tree)
        with closing(self._matcher.masks_of(tokens, children)) as masks:
            for node, mask in masks:
                self._masks[node] = mask
                if self._stop.is_set():
                    break
        self.seconds += time.perf_counter() - started


def _only_token(words: IntArray) -> int | None:
    """The token whose bit is the only one set; None if there are none or several."""
    nonzero = np.flatnonzero(words)
    if len(nonzero) != 1:
        return None
    word = int(words[nonzero[0]]) & 0xFFFFFFFF
    return None if word & (word - 1) else int(nonzero[0]) * _WORD_BITS + word.bit_length() - 1
