"""The lookahead window as a draft source: n-grams, pool, limits, and the same text for any window."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config.schema import LookaheadConfig, WindowDraftConfig
from pipeline.decoding.accept import accept
from pipeline.decoding.lookahead import window_size
from pipeline.decoding.request import StepResult
from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.sources.window import WindowSource
from pipeline.decoding.tree import EMPTY_TREE, DraftTree, check_tree, path_to
from pipeline.errors import RequestError

LARGE = DraftBudget(500, 50)


def sizes(window: int, ngram: int, candidates: int) -> LookaheadConfig:
    return LookaheadConfig.of(window, ngram, candidates)


def successor(tokens: list[int]) -> int:
    """A target whose next token depends on the last one, over 17 tokens."""
    return (tokens[-1] * 5 + 3) % 17


def step(
    source: WindowSource, tokens: list[int], budget: DraftBudget = LARGE, tell: bool = True
) -> tuple[DraftTree, list[int]]:
    """One decode step; the tokens are lengthened by what it emits."""
    context = np.asarray(tokens, np.int32)
    tree = source.propose("r", context, budget)
    check_tree(tree)
    assert len(tree) <= budget.max_nodes
    texts = [tokens + [int(tree.token_ids[node]) for node in path_to(tree, leaf)] for leaf in range(-1, len(tree))]
    choices = np.asarray([successor(text) for text in texts], np.int32)
    accepted = accept(tree, lambda node, _: int(choices[node + 1]))
    source.update("r", StepResult(context, tree, accepted.nodes, accepted.token_ids, choices if tell else None))
    tokens += accepted.token_ids
    return tree, accepted.token_ids


def started(config: LookaheadConfig, prompt: list[int], pool_from_prompt: bool = True) -> WindowSource:
    source = WindowSource(WindowDraftConfig(pool_from_prompt=pool_from_prompt), config)
    source.start("r", np.asarray(prompt, np.int32), "")
    return source


def test_the_window_finds_text_that_was_never_seen() -> None:
    # The pool knows nothing of the prompt, in which no token follows as the target has it anyway: only the window's
    # guesses can be right.
    tokens = [9, 6, 0, 10, 14, 4, 1, 15, 5, 3]
    assert not any(successor([before]) == after for before, after in itertools.pairwise(tokens))
    source = started(sizes(6, 4, 6), tokens, pool_from_prompt=False)
    emitted = [len(step(source, tokens)[1]) for _ in range(12)]
    assert emitted[0] == 1
    assert max(emitted) >= 3
    assert tokens[10:] == [successor([token]) for token in tokens[9:-1]]


def test_candidates_of_the_pool_stand_beside_the_window() -> None:
    source = started(sizes(3, 3, 2), [1, 2, 3, 1, 4, 5, 1])
    tree = source.propose("r", np.asarray([1, 2, 3, 1, 4, 5, 1], np.int32), LARGE)
    assert tree.num_fixed == 2  # the first level only, as yet
    candidates = {
        tuple(int(tree.token_ids[node]) for node in path_to(tree, leaf)) for leaf in range(tree.num_fixed, len(tree))
    }
    assert candidates == {(4,), (4, 5), (2,), (2, 3)}


def test_the_pool_is_seeded_from_the_prompt_only_if_wanted() -> None:
    source = started(sizes(1, 3, 2), [1, 2, 3, 1], pool_from_prompt=False)
    assert not len(source.propose("r", np.asarray([1, 2, 3, 1], np.int32), LARGE))


@pytest.mark.parametrize("ngram", [2, 3, 5])
def test_a_full_step_has_at_most_max_draft_len_nodes(ngram: int) -> None:
    tokens = [1, 2, 3, 4, 5] * 4
    source = started(sizes(4, ngram, 3), tokens)
    most = 0
    for _ in range(10):
        tree, _ = step(source, tokens)
        most = max(most, len(tree))
        assert len(tree) <= sizes(4, ngram, 3).max_draft_len
    assert tree.num_fixed == window_size(4, ngram)
    assert most > window_size(4, ngram)


def test_a_window_that_does_not_fit_is_left_out_and_comes_back() -> None:
    tokens = [1, 2, 3, 4, 5]
    source = started(sizes(4, 3, 2), tokens)
    for _ in range(4):
        step(source, tokens)
    tree, _ = step(source, tokens, DraftBudget(3, 8))
    assert tree.num_fixed == 0
    tree, _ = step(source, tokens)
    assert tree.num_fixed == window_size(4, 3)


def test_sizes_of_a_request_stay_within_the_limits_and_off_is_off() -> None:
    source = started(sizes(4, 4, 4), [1, 2, 3, 1, 2, 3])
    source.configure("r", sizes(2, 3, 1))
    assert source.propose("r", np.asarray([1, 2, 3], np.int32), LARGE).num_fixed == 1
    source.configure("r", sizes(1, 1, 0))
    assert not len(source.propose("r", np.asarray([1, 2, 3], np.int32), LARGE))
    tokens = [1, 2, 3]
    step(source, tokens)
    with pytest.raises(
        RequestError, match=r"lookahead \(W, N, G\) is \(2, 5, 1\); this engine allows at most \(4, 4, 4\)"
    ):
        source.configure("r", sizes(2, 5, 1))


def test_the_same_prompt_gets_the_same_window() -> None:
    trees = [started(sizes(8, 3, 0), list(range(40))).propose("r", np.asarray([1], np.int32), LARGE) for _ in range(2)]
    assert trees[0].token_ids.tolist() == trees[1].token_ids.tolist()


def test_stop_twice_does_nothing() -> None:
    source = started(sizes(2, 3, 1), [1, 2])
    source.start("other", np.asarray([1, 2], np.int32), "")
    before = source.propose("other", np.asarray([1, 2], np.int32), LARGE)
    for _ in range(2):
        source.stop("r")
        with pytest.raises(KeyError):
            source.propose("r", np.asarray([1, 2], np.int32), LARGE)
    after = source.propose("other", np.asarray([1, 2], np.int32), LARGE)
    assert len(before)
    assert after.token_ids.tolist() == before.token_ids.tolist()


@settings(deadline=None)
@given(
    st.integers(1, 6),
    st.integers(2, 5),
    st.integers(0, 4),
    st.lists(st.tuples(st.integers(0, 40), st.booleans()), min_size=1, max_size=12),
)
def test_the_text_stays_the_targets_for_any_window(
    window: int, ngram: int, candidates: int, steps: list[tuple[int, bool]]
) -> None:
    tokens = [20, 3]
    source = started(sizes(window, ngram, candidates), tokens)
    for room, tell in steps:
        step(source, tokens, DraftBudget(room, 12), tell)
    assert tokens[2:] == [successor([token]) for token in tokens[1:-1]]


def test_columns_carry_the_jacobi_trajectory() -> None:
    # With a target that depends on the last token only, level l of column j must be the target's answer to level l - 1.
    tokens = [20, 3]
    source = started(sizes(3, 4, 0), tokens)
    for _ in range(6):
        step(source, tokens)
    tree = source.propose("r", np.asarray(tokens, np.int32), LARGE)
    assert tree.num_fixed == window_size(3, 4)
    correct = 0
    for node in range(2, len(tree)):
        parent = int(tree.parents[node])
        above = tokens[-1] if parent < 0 else int(tree.token_ids[parent])
        correct += int(tree.token_ids[node]) == successor([above])
    assert correct >= 4


def test_a_prompt_shorter_than_an_ngram_counts_whole() -> None:
    source = started(sizes(2, 5, 4), [1, 2, 3], pool_from_prompt=False)
    step = StepResult(np.asarray([1, 2, 3], np.int32), EMPTY_TREE, [], [4, 5, 6, 7])
    source.update("r", step)
    for first in (1, 2, 3):
        tree = source.propose("r", np.asarray([9, first], np.int32), LARGE)
        assert tree.token_ids[tree.num_fixed :].tolist() == list(range(first + 1, first + 5))
