"""Statistics of how often the nodes of each source are right."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.decoding.drafting.reliability import Reliability
from pipeline.decoding.tree import DraftTree


def tree(probabilities: list[float], sources: list[int], num_fixed: int = 0) -> DraftTree:
    size = len(probabilities)
    return DraftTree(
        np.arange(size, dtype=np.int32),
        np.full(size, -1, np.int32),
        np.asarray(probabilities, np.float32),
        np.asarray(sources, np.int32),
        num_fixed,
    )


def add(reliability: Reliability, tree: DraftTree, accepted: list[int]) -> None:
    reliability.add(tree, np.asarray(accepted, np.int32))


def test_nodes_count_for_their_source_and_bucket() -> None:
    reliability = Reliability(("trie", "recycling"))
    add(reliability, tree([0.6, 0.55, 0.01], [0, 1, 1]), [0])
    add(reliability, tree([0.65], [0]), [])
    rows = {(row.source, row.low, row.high): row for row in reliability.take()}
    assert set(rows) == {("trie", 0.5, 0.7), ("recycling", 0.5, 0.7), ("recycling", 0.0, 0.02)}
    row = rows["trie", 0.5, 0.7]
    assert (row.nodes, row.accepted) == (2, 1)
    assert row.promised == pytest.approx(1.25)
    assert rows["recycling", 0.0, 0.02].accepted == 0


def test_windows_and_trees_without_estimates_do_not_count() -> None:
    reliability = Reliability(("window",))
    add(reliability, tree([0.3, 0.3], [0, 0], num_fixed=2), [1])
    add(reliability, DraftTree(np.zeros(1, np.int32), np.full(1, -1, np.int32)), [0])
    assert reliability.take() == []
    add(reliability, tree([0.3, 0.95], [0, 0], num_fixed=1), [0, 1])
    assert [(row.low, row.nodes, row.accepted) for row in reliability.take()] == [(0.9, 1, 1)]
    assert reliability.take() == []


def test_nodes_that_a_grammar_forces_count_for_no_source() -> None:
    reliability = Reliability(("trie", "recycling"))
    add(reliability, tree([0.6, 0.6], [0, -1]), [0, 1])
    assert [(row.source, row.nodes, row.accepted) for row in reliability.take()] == [("trie", 1, 1)]


@pytest.mark.parametrize(
    ("estimate", "low", "high"),
    [
        *((0.0, 0.0, 0.02), (0.02, 0.0, 0.02), (0.03, 0.02, 0.05), (0.08, 0.05, 0.1), (0.5, 0.3, 0.5)),
        *((0.6, 0.5, 0.7), (0.8, 0.7, 0.9), (0.95, 0.9, 1.0), (1.0, 0.9, 1.0)),
    ],
)
def test_an_estimate_is_in_the_bucket_that_it_ends(estimate: float, low: float, high: float) -> None:
    reliability = Reliability(("trie",))
    add(reliability, tree([estimate], [0]), [])
    (row,) = reliability.take()
    assert (row.low, row.high, row.nodes) == (low, high, 1)
