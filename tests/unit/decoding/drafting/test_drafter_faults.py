"""A source that fails loses its own drafts only."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from pipeline.config.schema import RecyclingDraftConfig
from pipeline.decoding.drafting.drafter import Drafter
from pipeline.decoding.request import StepResult
from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.sources.recycling import RecyclingSource
from pipeline.decoding.tree import EMPTY_TREE, DraftTree, IntArray, chain
from tests.logs import Logs
from tests.unit.decoding.scripted import BUDGET, CONTEXT, VOCAB, Scripted, drafter_of, fail, paths_of, step_of


@pytest.mark.parametrize(
    "propose",
    [
        fail,
        lambda _: chain([VOCAB]),
        lambda _: chain([-1]),
        lambda _: chain(list(range(9))),
        lambda _: chain(list(range(5))),
        lambda _: DraftTree(np.asarray([1, 2], np.int32), np.asarray([1, -1], np.int32)),
        lambda _: DraftTree(np.asarray([1, 2], np.int32), np.asarray([-1], np.int32)),
        lambda _: chain([1, 2], [float("nan"), 0.1]),
        lambda _: DraftTree(np.asarray([1, 2], np.int32), np.asarray([-1, 0], np.int32), np.asarray([0.1], np.float32)),
        lambda _: DraftTree(np.asarray([1.5, 2.5]), np.asarray([-1, 0], np.int32)),  # type: ignore[arg-type]
        lambda _: DraftTree(np.asarray([1, 2], np.int64), np.asarray([-1, 0], np.int32)),  # type: ignore[arg-type]
        lambda _: DraftTree(np.asarray([1], np.int32), np.asarray([-1], np.int32), num_fixed=2),
        lambda _: None,  # type: ignore[return-value, arg-type]
    ],
)
def test_a_broken_source_costs_its_own_drafts_only(propose: Callable[[DraftBudget], DraftTree], logs: Logs) -> None:
    broken, good = Scripted("broken", propose), Scripted("good", lambda _: chain([7, 8]))
    drafter = drafter_of(broken, good)
    for count in (1, 2):
        tree = drafter.propose("r", CONTEXT, BUDGET)
        assert paths_of(tree) == {(7,), (7, 8)}
        drafter.update("r", step_of(tree, [0, 1]))
        assert drafter.failures == {"broken": count, "good": 0}
        assert len(logs.records) == 1
    assert good.heard[-1].nodes == (0, 1)


def test_a_source_that_fails_to_start_or_learn_affects_no_other() -> None:
    class Hopeless(Scripted):
        def start(self, request_id: str, prompt_ids: IntArray, namespace: str) -> None:
            raise KeyError(request_id)

        def update(self, request_id: str, step: StepResult) -> None:
            raise KeyError(request_id)

        def stop(self, request_id: str) -> None:
            raise KeyError(request_id)

    good = Scripted("good", lambda _: chain([7, 8]))
    drafter = drafter_of(Hopeless("hopeless", fail), good)
    drafter.update("r", step_of(drafter.propose("r", CONTEXT, BUDGET), []))
    drafter.stop("r")
    assert drafter.failures == {"hopeless": 4, "good": 0}
    assert good.heard


def test_token_recycling_that_fails_to_start_affects_no_other_source() -> None:
    recycling, good = RecyclingSource(RecyclingDraftConfig()), Scripted("good", lambda _: chain([7, 8]))
    drafter = Drafter((recycling, good), VOCAB)
    drafter.start("r", CONTEXT, "\ud800", frozenset({"recycling", "good"}))  # half a character
    assert drafter.failures == {"recycling": 1, "good": 0}
    assert paths_of(drafter.propose("r", CONTEXT, BUDGET)) == {(7,), (7, 8)}


def test_a_source_that_changes_its_step_changes_it_for_no_other() -> None:
    class Vandal(Scripted):
        def update(self, request_id: str, step: StepResult) -> None:
            for name in ("nodes", "token_ids", "context"):
                with pytest.raises((TypeError, ValueError), match=r"assignment"):
                    getattr(step, name)[0] = 9
            raise RuntimeError("all were read-only")

    good = Scripted("good", lambda _: chain([7, 8]))
    drafter = drafter_of(Vandal("vandal", lambda _: EMPTY_TREE), good)
    drafter.update("r", step_of(drafter.propose("r", CONTEXT, BUDGET), [0]))
    (step,) = good.heard
    assert (step.nodes, step.token_ids, step.context.tolist()) == ((0,), (7, 0), CONTEXT.tolist())
    with pytest.raises(RuntimeError, match=r"vandal \(1 calls\)"):
        drafter.require_sound()


def test_a_source_cannot_change_the_context() -> None:
    class Vandal(Scripted):
        def propose(self, request_id: str, context: IntArray, budget: DraftBudget) -> DraftTree:
            context[0] = 9
            return EMPTY_TREE

    drafter, context = drafter_of(Vandal("vandal", fail)), CONTEXT.copy()
    drafter.propose("r", context, BUDGET)
    assert drafter.failures == {"vandal": 1}
    assert context.tolist() == CONTEXT.tolist()


def test_two_sources_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="different names"):
        drafter_of(Scripted("a", fail), Scripted("a", fail))
