"""The window of lookahead decoding (arXiv 2402.02057).

W columns and N - 1 levels of guessed tokens are verified as a draft tree of their own. The root (the last accepted
token) is column 0 of level 0; level 0 is a chain, and every column hangs down from it:

    W = 3, N = 4        root ---- c1 ---- c2        level 0
                          |        |       |
                         a0       a1      a2        level 1      parent: same column, one level up
                          |        |       |
                         b0       b1      b2        level 2

A node's ancestors give the paper's window mask, and its depth gives the position. The target's choices below the last
level complete one N-gram per column, (c1, a1, b1, choice) for instance, and become the last level of the next window.
"""

from __future__ import annotations

import numpy as np

from pipeline.decoding.tree import DraftTree, IntArray


def window_size(max_window_size: int, max_ngram_size: int) -> int:
    """Nodes of the full window, the root not counted."""
    return max(max_window_size * (max_ngram_size - 1) - 1, 0)


class Window:
    """The window of one request. rows: [levels] arrays; row 0 holds columns 1 .. W - 1, the others 0 .. W - 1."""

    def __init__(self, max_window_size: int, max_ngram_size: int, prompt_ids: IntArray, seed: int) -> None:
        """Draw the first level at random from the prompt's tokens. Each step then adds a level."""
        self.max_window_size = max_window_size
        self.max_ngram_size = max_ngram_size
        self._vocabulary = prompt_ids
        self._random = np.random.default_rng(seed)
        self.rows: list[IntArray] = [self._noise(max_window_size - 1)]

    @property
    def is_full(self) -> bool:
        """Whether the window has all N - 1 levels, so that a step completes N-grams."""
        return len(self.rows) == self.max_ngram_size - 1

    def tree(self) -> DraftTree:
        """The window as a draft tree of fixed nodes, level by level."""
        width = self.max_window_size
        parents = [-1, *range(width - 2)] if width > 1 else []
        if len(self.rows) > 1:
            parents += [-1, *range(width - 1)]
            for level in range(2, len(self.rows)):
                start = width - 1 + (level - 2) * width
                parents += range(start, start + width)
        tokens = np.concatenate(self.rows)
        return DraftTree(tokens, np.asarray(parents, np.int32), None, None, len(tokens))

    def last_level(self) -> range:
        """Indices in `tree` of the last level's nodes, by column; -1 is the root."""
        width = self.max_window_size
        start = (len(self.rows) - 1) * width - 1
        return range(start, start + width)

    def ngrams(self, root: int, choices: IntArray) -> list[list[int]]:
        """The N-grams that a verified full window completes. choices: [W] the target's choices below the last level."""
        first = np.concatenate(([root], self.rows[0])).astype(np.int32)
        return np.stack([first, *self.rows[1:], choices], axis=1).tolist()  # type: ignore[no-any-return]

    def advance(self, num_tokens: int, choices: IntArray | None) -> None:
        """Advance the window by num_tokens emitted tokens. choices: [W] the target's choices below the last level; None
        if it was not verified.

        The choices become the last level. A full window drops its first level, so each later level moves up by one.
        Column c of level l stands for position c + l after the root, which gives the shift of the columns. New columns
        on the right are drawn at random.
        """
        levels = self.rows if choices is None else [*self.rows, choices]
        # First column of each level.
        starts = [1] + [0] * (len(levels) - 1)
        shift = num_tokens
        if len(levels) > self.max_ngram_size - 1:
            levels, starts, shift = levels[1:], starts[1:], num_tokens - 1
        self.rows = [
            self._shifted(row, shift + (1 if level == 0 else 0) - start, self.max_window_size - (level == 0))
            for level, (row, start) in enumerate(zip(levels, starts, strict=True))
        ]

    def _shifted(self, row: IntArray, offset: int, width: int) -> IntArray:
        kept = row[offset : offset + width]
        filled: IntArray = np.concatenate((kept, self._noise(width - len(kept)))).astype(np.int32)
        return filled

    def _noise(self, count: int) -> IntArray:
        chosen: IntArray = self._vocabulary[self._random.integers(0, len(self._vocabulary), count)]
        return chosen
