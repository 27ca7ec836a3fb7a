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

from pipeline.decoding.tree import DraftTree, IntArray, path_to


def split_tree(tree: DraftTree, num_parts: int) -> list[IntArray]:
    """Return the nodes of each part, ascending; parts may be empty. Branches stay in depth-first order, and the largest
    part is as small as that order allows."""
    inner = set(tree.parents.tolist())
    branches = sorted(path_to(tree, node) for node in range(len(tree)) if node not in inner)  # depth first
    smallest, largest = -(-len(tree) // num_parts), len(tree)
    while smallest < largest:
        size = (smallest + largest) // 2
        if len(_fill(branches, size)) <= num_parts:
            largest = size
        else:
            smallest = size + 1
    parts = _fill(branches, largest)
    return [np.asarray(sorted(part), np.int32) for part in parts + [set()] * (num_parts - len(parts))]


def _fill(branches: list[list[int]], size: int) -> list[set[int]]:
    """Fill parts of at most `size` nodes, one after the other. A longer branch gets a part of its own."""
    parts: list[set[int]] = []
    for branch in branches:
        if parts and len(parts[-1].union(branch)) <= size:
            parts[-1].update(branch)
        else:
            parts.append(set(branch))
    return parts
