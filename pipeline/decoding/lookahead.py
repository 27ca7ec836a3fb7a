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
    """The window of one request. levels: [levels, W] its tokens. Column 0 of level 0 is the root's, and unused."""

    def __init__(self, max_window_size: int, max_ngram_size: int, prompt_ids: IntArray, seed: int) -> None:
        """Draw the first level at random from the prompt's tokens. Each step then adds a level."""
        self.max_window_size = max_window_size
        self.max_ngram_size = max_ngram_size
        self._vocabulary = prompt_ids
        self._random = np.random.default_rng(seed)
        self.levels: IntArray = np.hstack((prompt_ids[:1, None], self._noise(1, max_window_size - 1)))

    @property
    def is_full(self) -> bool:
        """Whether the window has all N - 1 levels, so that a step completes N-grams."""
        return len(self.levels) == self.max_ngram_size - 1

    def tree(self) -> DraftTree:
        """The window as a draft tree of fixed nodes, level by level."""
        cells, width = np.arange(1, self.levels.size), self.max_window_size  # without the root
        parents = np.where(cells < width, cells - 1, cells - width) - 1
        return DraftTree(self.levels.reshape(-1)[1:], parents.astype(np.int32), None, None, len(cells))

    def last_level(self) -> range:
        """Indices in `tree` of the last level's nodes, by column; -1 is the root."""
        end = self.levels.size - 1
        return range(end - self.max_window_size, end)

    def ngrams(self, root: int, choices: IntArray) -> list[list[int]]:
        """The N-grams that a verified full window completes. choices: [W] the target's choices below the last level."""
        columns = np.vstack((self.levels, choices))
        columns[0, 0] = root
        return columns.T.tolist()  # type: ignore[no-any-return]

    def advance(self, num_tokens: int, choices: IntArray | None) -> None:
        """Advance the window by num_tokens emitted tokens. choices: [W] the target's choices below the last level; None
        if it was not verified.

        The choices become the last level. A full window drops its first level, so each later level moves up by one.
        Column c of level l stands for position c + l after the root, which gives the shift of the columns. New columns
        on the right are drawn at random.
        """
        levels = self.levels if choices is None else np.vstack((self.levels, choices))
        shift = num_tokens
        if len(levels) == self.max_ngram_size:
            levels, shift = levels[1:], num_tokens - 1
        kept = levels[:, shift:]
        self.levels = np.hstack((kept, self._noise(len(levels), self.max_window_size - kept.shape[1])))

    def _noise(self, num_levels: int, num_columns: int) -> IntArray:
        chosen: IntArray = self._vocabulary[self._random.integers(0, len(self._vocabulary), (num_levels, num_columns))]
        return chosen
