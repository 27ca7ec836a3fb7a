"""Token recycling: candidates of earlier steps become drafts, in their namespace only."""

from __future__ import annotations

import numpy as np

from pipeline.config.schema import RecyclingDraftConfig
from pipeline.decoding.drafting.drafter import Drafter
from pipeline.decoding.request import StepResult
from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.sources.recycling import RecyclingSource
from pipeline.decoding.tree import EMPTY_TREE, tree_from_lists
from tests.unit.decoding.scripted import paths_of

VOCAB = 30


def started() -> Drafter:
    drafter = Drafter([RecyclingSource(RecyclingDraftConfig(top_k=2))], VOCAB)
    drafter.start("r", np.asarray([1], np.int32), "", frozenset({"recycling"}))
    return drafter


def test_candidates_of_refused_nodes_are_drafted_later_in_another_request() -> None:
    drafter = started()
    tree = tree_from_lists([5, 6], [-1, 0])
    top_ids = np.asarray([[9, 5], [6, 7], [8, 4]], np.int32)
    top_probs = np.asarray([[0.8, 0.1], [0.7, 0.2], [0.6, 0.2]], np.float32)
    drafter.update("r", StepResult(np.asarray([1], np.int32), tree, [], [9], None, top_ids, top_probs))
    drafter.stop("r")
    drafter.start("s", np.asarray([2, 5], np.int32), "", frozenset({"recycling"}))
    tree = drafter.propose("s", np.asarray([2, 5], np.int32), DraftBudget(3, 4))
    assert paths_of(tree) == {(6,), (7,), (6, 8)}


def test_a_longer_match_counts_more_than_a_shorter_one() -> None:
    drafter = started()
    for context, following in (([3, 5], 6), ([4, 5], 7)):
        drafter.update(
            "r",
            StepResult(
                np.asarray(context, np.int32),
                EMPTY_TREE,
                [],
                [following],
                None,
                np.asarray([[following, 20]], np.int32),
                np.asarray([[0.9, 0.05]], np.float32),
            ),
        )
    assert drafter.propose("r", np.asarray([3, 5], np.int32), DraftBudget(1, 1)).token_ids.tolist() == [6]
    assert drafter.propose("r", np.asarray([4, 5], np.int32), DraftBudget(1, 1)).token_ids.tolist() == [7]


def test_a_target_that_tells_no_candidates_teaches_nothing() -> None:
    drafter = started()
    drafter.update("r", StepResult(np.asarray([1], np.int32), EMPTY_TREE, [], [2]))
    assert not len(drafter.propose("r", np.asarray([1], np.int32), DraftBudget(4, 4)))
    assert drafter.failures == {"recycling": 0}


def test_namespaces_do_not_see_each_other() -> None:
    drafter = started()
    ids, probs = np.asarray([[9, 8]], np.int32), np.asarray([[0.8, 0.1]], np.float32)
    drafter.update("r", StepResult(np.asarray([1], np.int32), EMPTY_TREE, [], [9], None, ids, probs))
    for request_id, namespace, expected in (("mine", "", [9, 8]), ("theirs", "tenant", [])):
        drafter.start(request_id, np.asarray([1], np.int32), namespace, frozenset({"recycling"}))
        tree = drafter.propose(request_id, np.asarray([1], np.int32), DraftBudget(4, 1))
        assert tree.token_ids.tolist() == expected
        drafter.stop(request_id)
        drafter.stop(request_id)
