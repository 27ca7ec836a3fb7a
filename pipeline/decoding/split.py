"""Splits a draft tree over ranks that each hold the whole model (lookahead parallelism, arXiv 2402.02057).

A rank can verify a node only with all its ancestors, so a part is a set of branches, ancestors included:

    root -+- a -+- b        2 ranks:   a b c | a d e        both compute a
          |     +- c
          |     +- d - e
          +- f              3 ranks:   a b c | a d e | f

For the lookahead window, whose columns hang from a chain, this is the paper's split: each rank has whole columns and
the chain above them.
"""

from __future__ import annotations

import numpy as np

from pipeline.decoding.tree import DraftTree, IntArray


def split_tree(tree: DraftTree, num_parts: int) -> list[IntArray]:
    """Return the nodes of each part, ascending; parts may be empty. Branches stay in depth-first order, and the largest
    part is as small as that order allows."""
    branches = _branches(tree)
    smallest, largest = -(-len(tree) // num_parts), len(tree)
    while smallest < largest:
        size = (smallest + largest) // 2
        if len(_fill(branches, tree, size)) <= num_parts:
            largest = size
        else:
            smallest = size + 1
    parts = _fill(branches, tree, largest)
    return [np.asarray(sorted(part), np.int32) for part in parts + [set()] * (num_parts - len(parts))]


def _branches(tree: DraftTree) -> list[int]:
    """Leaves in depth-first order."""
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(tree.parents.tolist()):
        children.setdefault(parent, []).append(node)
    leaves: list[int] = []
    stack = children.get(-1, [])[::-1]
    while stack:
        node = stack.pop()
        below = children.get(node)
        if below is None:
            leaves.append(node)
        else:
            stack += below[::-1]
    return leaves


def _fill(leaves: list[int], tree: DraftTree, size: int) -> list[set[int]]:
    """Fill parts of at most `size` nodes, one after the other. A longer branch gets a part of its own."""
    parents = tree.parents.tolist()
    parts: list[set[int]] = []
    for leaf in leaves:
        path: set[int] = set()
        node = leaf
        while node >= 0:
            path.add(node)
            node = parents[node]
        if parts and len(parts[-1] | path) <= size:
            parts[-1] |= path
        else:
            parts.append(path)
    return parts
