"""Acceptance: the longest path of a tree that the target confirms."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from pipeline.decoding.accept import accept
from pipeline.decoding.tree import EMPTY_TREE, DraftTree, chain, path_to, tree_from_lists
from tests.unit.decoding.test_tree import trees


def test_the_longest_path_that_the_target_agrees_with_is_accepted() -> None:
    tree = tree_from_lists([5, 6, 7, 8], [-1, 0, 0, 2])
    target = [5, 7, 8, 9]
    result = accept(tree, lambda node, emitted: target[len(emitted)])
    assert result.nodes == [0, 2, 3]
    assert result.token_ids == [5, 7, 8, 9]


def test_without_drafts_the_target_emits_one_token() -> None:
    assert accept(EMPTY_TREE, lambda node, emitted: 4) == ([], [4])


def test_of_equal_siblings_the_first_is_walked() -> None:
    tree = tree_from_lists([5, 5, 6], [-1, -1, 0])
    assert accept(tree, lambda node, emitted: [5, 6, 1][len(emitted)]).nodes == [0, 2]


@given(trees(), st.lists(st.integers(0, 5), min_size=20, max_size=20))
def test_whatever_the_tree_the_target_alone_decides_the_tokens(tree: DraftTree, target: list[int]) -> None:
    asked: list[tuple[int, list[int]]] = []

    def choose(node: int, emitted: Sequence[int]) -> int:
        asked.append((node, list(emitted)))
        return target[len(emitted)]

    nodes, tokens = accept(tree, choose)
    assert tokens == target[: len(tokens)]
    assert len(tokens) == len(nodes) + 1 == len(asked)
    assert nodes == (path_to(tree, nodes[-1]) if nodes else [])
    assert tree.token_ids[nodes].tolist() == tokens[:-1]
    assert [node for node, _ in asked] == [-1, *nodes]


def test_a_chain_is_accepted_up_to_its_first_wrong_token() -> None:
    target = [1, 2, 3, 4]
    assert accept(chain([1, 2, 9, 4]), lambda node, emitted: target[len(emitted)]).token_ids == [1, 2, 3]
