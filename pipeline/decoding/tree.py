"""The draft tree: what a draft source proposes and a verify step checks.

The *root* is the last accepted token of a sequence and not part of the tree. Parents come before their children, so a
single pass over the arrays computes every derived quantity:

    root -+- 0 "the" -+- 1 "cat"      token_ids = [the, cat, dog, a]
          |           +- 2 "dog"      parents   = [ -1,   0,   0, -1]
          +- 3 "a"                    depths    = [  1,   2,   2,  1]

A chain is a tree with one branch. The optional input `draft_parents` of the torch engine has the form of `parents`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]
Array = TypeVar("Array", bound=npt.NDArray[Any])

ROOT = -1


@dataclass(frozen=True, slots=True, eq=False)
class DraftTree:
    """Draft tokens below the last accepted token.

    token_ids: [n] token of each node.
    parents: [n] index of each node's parent, always smaller than its own; `ROOT` (-1) for children of the root.
    probabilities: [n] estimated probability that the whole path down to the node is accepted, or None if unknown.
    sources: [n] index of the draft source that each node is credited to, or None.
    num_fixed: number of nodes at the start (a lookahead window) that are verified all together or not at all.
    """

    token_ids: IntArray
    parents: IntArray
    probabilities: FloatArray | None = None
    sources: IntArray | None = None
    num_fixed: int = 0

    def __len__(self) -> int:
        return len(self.token_ids)


EMPTY_TREE = DraftTree(np.empty(0, np.int32), np.empty(0, np.int32))


def read_only(array: Array) -> Array:
    """A read-only view. Kernels are compiled separately for read-only and writable arrays, so draft sources receive
    read-only ones throughout."""
    view = array.view()
    view.setflags(write=False)
    return view


def tree_from_lists(
    token_ids: Sequence[int], parents: Sequence[int], probabilities: Sequence[float] | None = None
) -> DraftTree:
    """Make a tree from plain lists. Raises ValueError (from `check_tree`) if they are not a tree."""
    tree = DraftTree(
        np.asarray(token_ids, np.int32),
        np.asarray(parents, np.int32),
        None if probabilities is None else np.asarray(probabilities, np.float32),
    )
    check_tree(tree)
    return tree


def chain(token_ids: Sequence[int], probabilities: Sequence[float] | None = None) -> DraftTree:
    """A tree with one branch."""
    return tree_from_lists(token_ids, range(-1, len(token_ids) - 1), probabilities)


def check_tree(tree: DraftTree, vocab_size: int | None = None) -> None:
    """Raise ValueError with the faulty node if a parent does not precede its child, or a token is outside vocab_size
    (if given)."""
    tokens, parents = tree.token_ids, tree.parents
    if tokens.ndim != 1 or tokens.shape != parents.shape:
        raise ValueError(
            f"draft tokens and parents must be two lists of one length, found {tokens.shape}, {parents.shape}"
        )
    for node, parent in enumerate(parents.tolist()):
        if not ROOT <= parent < node:
            raise ValueError(f"draft node {node} has parent {parent}; it must lie in -1..{node - 1}")
    if vocab_size is not None:
        for node, token in enumerate(tokens.tolist()):
            if not 0 <= token < vocab_size:
                raise ValueError(f"draft node {node} has token {token}; the vocabulary has 0..{vocab_size - 1}")


def depths(tree: DraftTree) -> IntArray:
    """[n] distance from the root; its children have depth 1."""
    result: list[int] = []
    for parent in tree.parents.tolist():
        result.append(1 if parent < 0 else result[parent] + 1)
    return np.asarray(result, np.int32)


def ancestor_mask(tree: DraftTree) -> BoolArray:
    """[n, n] attention mask: True if the column is the row's node itself or one of its ancestors."""
    mask = np.eye(len(tree), dtype=np.bool_)
    for node, parent in enumerate(tree.parents.tolist()):
        if parent >= 0:
            mask[node, : parent + 1] |= mask[parent, : parent + 1]
    return mask


def path_to(tree: DraftTree, node: int) -> list[int]:
    """Nodes from the root's child down to `node`, both included."""
    path = []
    while node >= 0:
        path.append(node)
        node = int(tree.parents[node])
    return path[::-1]


def children_of(tree: DraftTree) -> dict[int, dict[int, int]]:
    """For each inner node (and `ROOT`): token -> child node. Of siblings with the same token the first is used."""
    children: dict[int, dict[int, int]] = {}
    for node, (parent, token) in enumerate(zip(tree.parents.tolist(), tree.token_ids.tolist(), strict=True)):
        children.setdefault(parent, {}).setdefault(token, node)
    return children


def find_nodes(tree: DraftTree, other: DraftTree) -> list[int]:
    """For each node of `tree` the first node of `other` with the same path, -1 if there is none."""
    first: dict[tuple[int | None, int], int] = {}  # by parent and token
    same: list[int] = []
    for node, (parent, token) in enumerate(zip(other.parents.tolist(), other.token_ids.tolist(), strict=True)):
        same.append(first.setdefault((ROOT if parent < 0 else same[parent], token), node))
    found: list[int | None] = []
    for parent, token in zip(tree.parents.tolist(), tree.token_ids.tolist(), strict=True):
        found.append(first.get((ROOT if parent < 0 else found[parent], token)))
    return [-1 if node is None else node for node in found]


def select_nodes(tree: DraftTree, keep: BoolArray) -> DraftTree:
    """The subtree of the nodes in `keep` [n], without nodes whose parent is dropped."""
    kept = keep.tolist()
    count = sum(kept)
    if count == len(kept):
        return tree
    chosen: list[int] | slice = slice(count)
    parents = tree.parents[:count]
    if not all(kept[:count]):
        new_nodes = [ROOT] * len(tree)
        chosen, above = [], []
        for node, (is_kept, parent) in enumerate(zip(kept, tree.parents.tolist(), strict=True)):
            if is_kept and (parent < 0 or new_nodes[parent] >= 0):
                new_nodes[node] = len(chosen)
                chosen.append(node)
                above.append(ROOT if parent < 0 else new_nodes[parent])
        parents = np.asarray(above, np.int32)
    if not len(parents):
        return EMPTY_TREE
    return DraftTree(
        tree.token_ids[chosen],
        parents,
        None if tree.probabilities is None else tree.probabilities[chosen],
        None if tree.sources is None else tree.sources[chosen],
        tree.num_fixed if all(kept[: tree.num_fixed]) else 0,
    )


def limit_tree(tree: DraftTree, max_nodes: int, max_depth: int) -> DraftTree:
    """The most probable `max_nodes` nodes (the first ones, if probabilities are unknown) no deeper than `max_depth`."""
    keep = depths(tree) <= max_depth
    if keep.sum() > max_nodes:
        # Path probabilities never grow downwards, so with a stable order a kept node's parent is kept as well.
        rank: npt.NDArray[Any] = np.arange(len(tree)) if tree.probabilities is None else -tree.probabilities
        rank = np.where(np.arange(len(tree)) < tree.num_fixed, -np.inf, rank)
        order = np.argsort(np.where(keep, rank, np.inf), kind="stable")
        keep = np.zeros(len(tree), np.bool_)
        keep[order[: max(max_nodes, 0)]] = True
    return select_nodes(tree, keep)


def agreeing_path(tree: DraftTree, future: Sequence[int]) -> list[int]:
    """Nodes of the longest path from the root that carries the tokens of `future`."""
    children = children_of(tree)
    nodes: list[int] = []
    for token in future:
        child = children.get(nodes[-1] if nodes else ROOT, {}).get(token)
        if child is None:
            break
        nodes.append(child)
    return nodes
