"""The balance of drafting: it ends drafting that does not pay, tries again, and goes on when drafts pay."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline.decoding.planning.balance import DraftBalance
from pipeline.decoding.planning.cost import CostCurve, CostPoint
from pipeline.decoding.planning.planner import AdaptivePlanner, FixedPlanner, PlanItem
from pipeline.decoding.tree import EMPTY_TREE, chain
from tests.fakes import cost_curve

PLAIN_SECONDS = 0.001
FLAT = CostCurve((CostPoint(1, 1, 0, 0.1), CostPoint(9, 1, 0, 0.1)))


def drafted(balance: DraftBalance, num_passes: int, saved: float, seconds: float) -> int:
    """The number of passes with drafts, of which each saves and takes these times."""
    count = 0
    for _ in range(num_passes):
        if balance.pays:
            count += 1
            balance.add(saved, [seconds], PLAIN_SECONDS)
        else:
            balance.wait()
    return count


def test_drafting_that_saves_more_than_it_takes_goes_on() -> None:
    assert drafted(DraftBalance(), 1000, saved=0.2, seconds=0.0001) == 1000


@pytest.mark.parametrize("cost", [0.5, 2.0, 20.0])
def test_what_drafting_loses_is_bounded(cost: float) -> None:
    lost = cost * drafted(DraftBalance(), 10_000, saved=0.0, seconds=cost * PLAIN_SECONDS)
    # The first value of the balance, and trials that take 1 % of the time.
    assert lost <= 4 + cost + 100
    assert lost >= 50, "it is tried again"


def test_drafting_returns_with_the_first_trial_that_pays() -> None:
    balance = DraftBalance()
    assert drafted(balance, 1000, saved=0.0, seconds=2 * PLAIN_SECONDS) < 20
    assert drafted(balance, 500, saved=3.0, seconds=2 * PLAIN_SECONDS) > 500 - 200


def test_drafts_of_long_ago_do_not_pay_for_those_of_today() -> None:
    balance = DraftBalance()
    drafted(balance, 1000, saved=5.0, seconds=PLAIN_SECONDS)
    assert drafted(balance, 20, saved=0.0, seconds=PLAIN_SECONDS) == 5


def test_one_interrupted_step_has_no_effect() -> None:
    balance = DraftBalance()
    drafted(balance, 20, saved=0.2, seconds=PLAIN_SECONDS / 10)
    balance.add(0.2, [1000 * PLAIN_SECONDS], PLAIN_SECONDS)
    assert drafted(balance, 100, saved=0.2, seconds=PLAIN_SECONDS / 10) == 100


def test_each_sequence_of_a_pass_takes_its_time() -> None:
    balance = DraftBalance()
    balance.add(0.0, [PLAIN_SECONDS] * 4, PLAIN_SECONDS)
    assert balance.pays
    balance.add(0.0, [PLAIN_SECONDS], PLAIN_SECONDS)
    assert not balance.pays


def test_drafting_is_tried_again_while_sequences_with_other_sources_draft() -> None:
    planner = AdaptivePlanner(FLAT)
    slow, fast = frozenset({"trie"}), frozenset({"recycling"})
    drafted, waiting = PlanItem(chain([1], [0.5]), 1, 0), PlanItem(EMPTY_TREE, 1, 0)
    planner.plan([drafted._replace(names=slow, draft_seconds=0.5)], 64)
    assert not planner.drafting_pays(slow)
    for _ in range(60):  # it lost half a pass more than it had
        planner.plan([waiting._replace(names=slow), drafted._replace(names=fast, draft_seconds=0.0)], 64)
    assert planner.drafting_pays(slow)


@pytest.mark.parametrize(
    ("probabilities", "draft_seconds", "pays"),
    [([0.5, 0.4], 0.04, True), ([0.5, 0.4], 0.06, False), ([0.9], 0.06, True), ([0.9], 0.08, False)],
)
def test_drafts_save_their_tokens_less_the_time_that_they_add_to_a_pass(
    probabilities: list[float], draft_seconds: float, pays: bool
) -> None:
    """A node adds 0.2 plain passes. All nodes together save 0.9."""
    names, planner = frozenset({"trie"}), AdaptivePlanner(cost_curve([(1, 1, 0, 0.10), (3, 1, 0, 0.14)]))
    tree = chain(list(range(len(probabilities))), probabilities)
    for _ in range(60):
        assert planner.plan([PlanItem(tree, 1, 0, True, names, draft_seconds)], 64) == [tree]
    assert planner.drafting_pays(names) == pays


def test_drafts_that_are_not_sent_save_nothing() -> None:
    names, planner = frozenset({"trie"}), AdaptivePlanner(cost_curve([(1, 1, 0, 0.1), (9, 1, 0, 0.9)]))
    for _ in range(10):
        assert planner.plan([PlanItem(chain([1], [0.5]), 1, 0, True, names, 0.05)], 64) == [EMPTY_TREE]
    assert not planner.drafting_pays(names)


def test_sequences_share_the_time_that_their_drafts_add_to_a_pass() -> None:
    """Two nodes add 0.4 passes for two sequences, and each saves half of 0.9."""
    planner = AdaptivePlanner(cost_curve([(2, 2, 0, 0.10), (4, 2, 0, 0.14)]))
    each = [frozenset({"trie"}), frozenset({"prompt"})]
    for _ in range(60):
        planner.plan([PlanItem(chain([1], [0.9]), 1, 0, True, names, 0.02) for names in each], 64)
    assert all(map(planner.drafting_pays, each))


def test_checks_of_outputs_plan_by_the_curve_alone() -> None:
    """A node takes 0.4 plain passes."""
    planner = AdaptivePlanner(cost_curve([(1, 1, 0, 0.10), (11, 1, 0, 0.50)]), always_drafts=True)
    sent = [planner.plan([PlanItem(chain([1], [probability]), 1, 0)], 64) for probability in (0.3, 0.5)]
    assert [len(tree) for (tree,) in sent] == [0, 1]


@pytest.mark.parametrize("num_fixed", [0, 2])
def test_drafts_that_save_nothing_are_not_sent_even_where_they_take_no_time(num_fixed: int) -> None:
    tree = replace(chain([1, 2], [0.0, 0.0]), num_fixed=num_fixed)
    assert AdaptivePlanner(FLAT).plan([PlanItem(tree, 1, 0)], 64) == [EMPTY_TREE]


def test_passes_are_compared_with_the_plain_pass_of_the_curve() -> None:
    """A node takes twice the time that the curve says."""
    planner = AdaptivePlanner(cost_curve([(1, 1, 0, 0.10), (11, 1, 0, 0.40)]))
    for number in range(100):
        tree = chain([1], [0.95]) if number % 2 else EMPTY_TREE
        (sent,) = planner.plan([PlanItem(tree, 1, 0, draft_seconds=0.0)], 64)
        planner.record(0.1 + 0.06 * len(sent))
    assert planner._correction.factors == pytest.approx((1, 2), abs=0.1)


def test_plain_sequences_have_no_balance() -> None:
    planner = AdaptivePlanner(FLAT)
    assert planner.plan([PlanItem(EMPTY_TREE, 1, 100)], 64) == [EMPTY_TREE]
    planner.plan([PlanItem(chain([1], [0.5]), 1, 100)], 64)
    assert not planner._balances
    assert FixedPlanner().drafting_pays(frozenset({"trie"}))
