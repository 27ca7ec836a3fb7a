"""The lookahead window: positions and mask as in the paper, and its rows step by step."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config.schema import LookaheadConfig
from pipeline.decoding.lookahead import Window, window_size
from pipeline.decoding.tree import ancestor_mask, check_tree, depths


@settings(deadline=None)
@given(st.integers(1, 20), st.integers(2, 9), st.integers(0, 20))
def test_window_and_candidates_add_up_to_max_draft_len(width: int, ngram: int, candidates: int) -> None:
    sizes = LookaheadConfig.of(width, ngram, candidates)
    assert window_size(width, ngram) + candidates * (ngram - 1) == sizes.max_draft_len


def rows(window: Window) -> list[list[int]]:
    """The tokens of each level; the root is not among those of the first."""
    first, *others = window.levels.tolist()
    return [first[1:], *others]


def filled_window(width: int, ngram: int) -> Window:
    window = Window(width, ngram, np.arange(100, 140, dtype=np.int32), seed=7)
    level = 1
    while not window.is_full:
        window.advance(1, np.arange(width, dtype=np.int32) + 1000 * level)
        level += 1
    return window


@settings(deadline=None)
@given(st.integers(1, 8), st.integers(2, 6))
def test_full_window_is_a_tree_with_the_papers_positions_and_mask(width: int, ngram: int) -> None:
    window = filled_window(width, ngram)
    tree = window.tree()
    check_tree(tree)
    assert len(tree) == tree.num_fixed == window_size(width, ngram)
    # Level l of column j sees level 0 up to its column and the levels above it in its own column.
    cells = [(0, column) for column in range(1, width)]
    cells += [(level, column) for level in range(1, ngram - 1) for column in range(width)]
    expected = np.asarray(
        [
            [(other[0] == 0 and other[1] <= own[1]) or (other[1] == own[1] and other[0] <= own[0]) for other in cells]
            for own in cells
        ]
    ).reshape(len(cells), len(cells))
    assert np.array_equal(ancestor_mask(tree), expected)
    assert depths(tree).tolist() == [level + column for level, column in cells]
    root, last = (0, 0), ngram - 2
    assert [([*cells, root])[node] for node in window.last_level()] == [(last, column) for column in range(width)]


def test_a_window_that_fills_gains_one_level_per_step_and_moves_one_column() -> None:
    window = Window(3, 4, np.asarray([7], np.int32), seed=0)
    assert rows(window) == [[7, 7]]
    window.advance(1, np.asarray([10, 11, 12], np.int32))
    assert rows(window) == [[7, 7], [11, 12, 7]]
    window.advance(1, np.asarray([20, 21, 22], np.int32))
    assert rows(window) == [[7, 7], [12, 7, 7], [21, 22, 7]]
    assert window.is_full


def test_a_full_window_drops_its_first_level_and_keeps_positions_when_several_tokens_are_accepted() -> None:
    window = Window(4, 3, np.asarray([7], np.int32), seed=0)
    window.advance(1, np.asarray([10, 11, 12, 13], np.int32))
    assert rows(window) == [[7, 7, 7], [11, 12, 13, 7]]
    # Level 1 lay at positions 1..4 behind the old root, the choices at 2..5; the new root is position 2.
    window.advance(2, np.asarray([20, 21, 22, 23], np.int32))
    assert rows(window) == [[13, 7, 7], [21, 22, 23, 7]]
    # Not verified: nothing is dropped, everything moves by the tokens accepted.
    window.advance(2, None)
    assert rows(window) == [[7, 7, 7], [23, 7, 7, 7]]


def test_ngrams_read_down_the_columns() -> None:
    window = Window(3, 3, np.asarray([7], np.int32), seed=0)
    window.advance(1, np.asarray([10, 11, 12], np.int32))
    assert window.ngrams(1, np.asarray([30, 31, 32], np.int32)) == [[1, 11, 30], [7, 12, 31], [7, 7, 32]]


def test_bigram_window_is_full_at_once() -> None:
    window = Window(3, 2, np.asarray([4, 5], np.int32), seed=1)
    (first,) = rows(window)
    assert window.is_full
    assert window.ngrams(9, np.asarray([1, 2, 3], np.int32)) == [[9, 1], [first[0], 2], [first[1], 3]]
    window.advance(1, np.asarray([1, 2, 3], np.int32))
    assert rows(window) == [[2, 3]]


def positions(window: Window, first: int = 0) -> list[dict[int, int]]:
    """For each level: token by position after the root, which is `first` tokens further."""
    return [
        {first + level + column + (level == 0): token for column, token in enumerate(row)}
        for level, row in enumerate(rows(window))
    ]


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(2, 5), st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=12))
def test_tokens_keep_their_positions_in_the_text(width: int, ngram: int, steps: list[tuple[int, bool]]) -> None:
    window = Window(width, ngram, np.arange(100, 140, dtype=np.int32), seed=7)
    for number, (accepted, verified) in enumerate(steps):
        choices = 1000 * (number + 1) + np.arange(width, dtype=np.int32)
        known = positions(window)
        if verified:
            known.append({len(known) + column: token for column, token in enumerate(choices.tolist())})
        window.advance(accepted, choices if verified else None)
        for before, after in zip(known[-len(window.levels) :], positions(window, accepted), strict=True):
            moved = {place: token for place, token in before.items() if place in after}
            assert moved == {place: token for place, token in after.items() if place in before}


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(2, 5), st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=12))
def test_rows_keep_their_widths_whatever_is_accepted(width: int, ngram: int, steps: list[tuple[int, bool]]) -> None:
    window = Window(width, ngram, np.asarray([1, 2, 3], np.int32), seed=3)
    for accepted, verified in steps:
        window.advance(accepted, np.full(width, 50, np.int32) if verified else None)
        assert window.levels.shape[1] == width
        assert len(window.levels) <= ngram - 1
        check_tree(window.tree())


def test_same_seed_same_window() -> None:
    prompt = np.arange(50, dtype=np.int32)
    first, second = (rows(Window(8, 3, prompt, seed=5)) for _ in range(2))
    assert first == second
    assert rows(Window(8, 3, prompt, seed=6)) != first
