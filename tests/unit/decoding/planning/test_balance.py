"""The balance of drafting: it ends drafting that does not pay, tries again, and goes on when drafts pay."""

from __future__ import annotations

import pytest

from pipeline.decoding.planning.balance import DraftBalance
from pipeline.decoding.planning.cost import CostCurve, CostPoint
from pipeline.decoding.planning.planner import AdaptivePlanner, FixedPlanner, PlanItem
from pipeline.decoding.tree import EMPTY_TREE, chain

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


def test_plain_sequences_have_no_balance() -> None:
    planner = AdaptivePlanner(FLAT)
    assert planner.plan([PlanItem(EMPTY_TREE, 1, 100)], 64) == [EMPTY_TREE]
    planner.plan([PlanItem(chain([1], [0.5]), 1, 100)], 64)
    assert not planner._balances
    assert FixedPlanner().drafting_pays(frozenset({"trie"}))
