"""Planners: the drafts of a batch that pay, within the room of a pass."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.decoding.planning.planner import AdaptivePlanner, FixedPlanner, PlanItem
from pipeline.decoding.tree import EMPTY_TREE, DraftTree, check_tree, tree_from_lists
from tests.fakes import cost_curve

FLAT = cost_curve([(1, 1, 0, 0.100), (100, 1, 0, 0.101)])
STEEP = cost_curve([(1, 1, 0, 0.1), (100, 1, 0, 10.0)])


def item(*probabilities: float, num_fixed: int = 0) -> PlanItem:
    """Nodes are a chain where probabilities fall, as they must along a path."""
    parents = list(range(-1, len(probabilities) - 1))
    tree = tree_from_lists(list(range(len(parents))), parents, list(probabilities))
    return PlanItem(DraftTree(tree.token_ids, tree.parents, tree.probabilities, None, num_fixed), 1, 100)


@st.composite
def plan_items(draw: st.DrawFn) -> list[PlanItem]:
    items = []
    for _ in range(draw(st.integers(1, 3))):
        parents: list[int] = []
        probabilities: list[float] = []
        for node in range(draw(st.integers(0, 5))):
            parent = draw(st.integers(-1, node - 1))
            parents.append(parent)
            probabilities.append(
                (probabilities[parent] if parent >= 0 else 1.0) * draw(st.sampled_from([0.9, 0.5, 0.1]))
            )
        items.append(PlanItem(tree_from_lists(list(range(len(parents))), parents, probabilities), 1, 10))
    return items


def gain(trees: list[DraftTree]) -> float:
    return sum(float(tree.probabilities.sum()) for tree in trees if tree.probabilities is not None)


def test_all_is_sent_where_a_pass_costs_the_same_and_nothing_where_each_token_costs_full_price() -> None:
    items = [item(0.5, 0.3, 0.1), item(0.2)]
    assert [len(tree) for tree in AdaptivePlanner(FLAT).plan(items, 100)] == [3, 1]
    assert AdaptivePlanner(STEEP).plan(items, 100) == [EMPTY_TREE, EMPTY_TREE]


def test_room_goes_to_the_most_probable_nodes_of_the_whole_batch() -> None:
    items = [item(0.9, 0.8, 0.1), item(0.5, 0.4)]
    trees = AdaptivePlanner(FLAT).plan(items, 2 + 3)
    assert [tree.token_ids.tolist() for tree in trees] == [[0, 1], [0]]
    assert [len(tree) for tree in FixedPlanner().plan(items, 2 + 3)] == [2, 1]


def test_without_room_nothing_is_sent() -> None:
    for planner in (FixedPlanner(), AdaptivePlanner(FLAT)):
        assert [len(tree) for tree in planner.plan([item(0.9), item(0.9)], 2)] == [0, 0]
        assert planner.plan([], 10) == []


def test_a_window_is_sent_whole_or_not_at_all() -> None:
    window = item(0.01, 0.001, 0.0001, num_fixed=3)
    assert [len(tree) for tree in AdaptivePlanner(FLAT).plan([item(0.9, 0.8), window], 2 + 4)] == [1, 3]
    for planner in (FixedPlanner(), AdaptivePlanner(FLAT)):
        trees = planner.plan([item(0.9, 0.8), window], 2 + 2)
        assert [(len(tree), tree.num_fixed) for tree in trees] == [(2, 0), (0, 0)]


def test_nothing_below_the_first_node_of_a_window_that_is_left_out_is_sent() -> None:
    tree = tree_from_lists([0, 1, 2, 3], [-1, 0, 0, -1], [0.9, 0.8, 0.85, 0.5])
    own = PlanItem(DraftTree(tree.token_ids, tree.parents, tree.probabilities, None, 2), 1, 100)
    assert [each.token_ids.tolist() for each in FixedPlanner().plan([own], 1 + 1)] == [[3]]


@given(plan_items(), st.lists(st.integers(0, 3), min_size=3, max_size=3), st.integers(0, 12))
def test_fixed_fills_the_room_with_windows_first_and_nothing_below_one_that_is_left_out(
    items: list[PlanItem], windows: list[int], room: int
) -> None:
    items = [
        it._replace(tree=replace(it.tree, num_fixed=min(n, len(it.tree))))
        for it, n in zip(items, windows, strict=False)
    ]
    free, kept = room, []
    for it in items:
        kept.append(it.tree.num_fixed <= free)
        free -= it.tree.num_fixed if kept[-1] else 0
    sendable = 0
    for it, keep in zip(items, kept, strict=True):
        hidden = set() if keep else set(range(it.tree.num_fixed))
        for node in range(it.tree.num_fixed, len(it.tree)):
            hidden |= {node} if it.tree.parents[node] in hidden else set()
        sendable += len(it.tree) - len(hidden)

    trees = FixedPlanner().plan(items, len(items) + room)

    assert sum(map(len, trees)) == min(room, sendable)
    for tree, it, keep in zip(trees, items, kept, strict=True):
        check_tree(tree)
        assert tree.num_fixed == (it.tree.num_fixed if keep else 0)


def test_a_window_that_does_not_pay_is_dropped() -> None:
    assert AdaptivePlanner(STEEP).plan([item(0.01, 0.001, num_fixed=2)], 100) == [EMPTY_TREE]


def test_a_window_that_does_not_pay_costs_no_other_sequence_a_draft() -> None:
    curve = cost_curve([(1, 2, 0, 1.0), (5, 2, 0, 1.1), (210, 2, 0, 10.0)])
    window, good = item(*[1e-6] * 200, num_fixed=200), item(0.95, 0.9)
    assert [len(tree) for tree in AdaptivePlanner(curve).plan([good, window], 1000)] == [2, 0]
    # Nor the request that it belongs to.
    tree = tree_from_lists(list(range(203)), [*range(-1, 199), -1, 200, 201], [*[1e-6] * 200, 0.9, 0.8, 0.7])
    own = PlanItem(DraftTree(tree.token_ids, tree.parents, tree.probabilities, None, 200), 1, 100)
    (sent,) = AdaptivePlanner(curve).plan([own], 1000)
    assert sent.token_ids.tolist() == [200, 201, 202]


def test_fixed_sends_everything_that_fits_untouched() -> None:
    items = [item(0.9, 0.8), PlanItem(tree_from_lists([1, 2], [-1, -1]), 5, 10)]
    trees = FixedPlanner().plan(items, 100)
    assert all(tree is given.tree for tree, given in zip(trees, items, strict=True))


@settings(deadline=None)
@given(plan_items(), st.lists(st.floats(0.0, 0.2), min_size=20, max_size=20), st.integers(0, 12))
def test_no_choice_of_nodes_gives_more_expected_tokens_per_second(
    items: list[PlanItem], increments: list[float], room: int
) -> None:
    times = (0.1 + np.cumsum(increments)).tolist()
    curve = cost_curve([(size + 1, 1, 0, seconds) for size, seconds in enumerate(times)])
    num_pending = len(items)
    trees = AdaptivePlanner(curve).plan(items, num_pending + room)
    for tree in trees:
        check_tree(tree)
    total = sum(map(len, trees))
    assert total <= room
    rate = (num_pending + gain(trees)) / curve.seconds_up_to(num_pending + total, 1, 10)[-1]
    everything = sorted(
        itertools.chain.from_iterable(
            it.tree.probabilities.tolist() for it in items if it.tree.probabilities is not None
        ),
        reverse=True,
    )
    for count in range(min(len(everything), room) + 1):
        other = (num_pending + sum(everything[:count])) / curve.seconds_up_to(num_pending + count, 1, 10)[-1]
        assert rate >= other * (1 - 1e-5)
    assert [tree.token_ids.tolist() for tree in AdaptivePlanner(curve).plan(items, num_pending + room)] == [
        tree.token_ids.tolist() for tree in trees
    ]


def test_mean_context_decides_what_a_pass_costs() -> None:
    curve = cost_curve([(1, 1, 0, 0.1), (9, 1, 0, 0.1), (1, 1, 1000, 0.1), (9, 1, 1000, 5.0)])
    near, far = (item(0.5, 0.4)._replace(context_len=length) for length in (0, 1000))
    assert len(AdaptivePlanner(curve).plan([near], 10)[0]) == 2
    assert len(AdaptivePlanner(curve).plan([far], 10)[0]) == 0


@pytest.mark.parametrize(("seconds", "num_sent"), [(0.15, 2), (1.1, 0)])
def test_a_prompt_in_the_pass_changes_no_plan(seconds: float, num_sent: int) -> None:
    """Its time is spent in any case, and a draft saves a step of decoding, however long the prompt is."""
    planner = AdaptivePlanner(cost_curve([(1, 1, 0, 0.1), (11, 1, 0, seconds)]))
    drafting = item(0.3, 0.2)._replace(context_len=0)
    prompt_part = PlanItem(EMPTY_TREE, 5, 0, yields_token=False)
    assert [len(tree) for tree in planner.plan([drafting], 50)] == [num_sent]
    assert [len(tree) for tree in planner.plan([drafting, prompt_part], 50)] == [num_sent, 0]
    assert [len(tree) for tree in planner.plan([drafting._replace(num_pending=9)], 50)] == [num_sent]


def test_a_pass_is_planned_by_the_mean_context_length() -> None:
    asked: list[tuple[int, int, int]] = []

    class Curve:
        def seconds_up_to(self, num_tokens: int, batch_size: int, context_len: int) -> np.ndarray:
            asked.append((num_tokens, batch_size, context_len))
            return FLAT.seconds_up_to(num_tokens, batch_size, 0)

    items = [item(0.9, 0.8)._replace(context_len=length) for length in (100, 400, 700)]
    AdaptivePlanner(Curve()).plan(items, 64)  # type: ignore[arg-type]
    assert asked == [(3 + 32, 3, 400)]


@settings(deadline=None)
@given(plan_items(), st.lists(st.floats(0.001, 0.2), min_size=40, max_size=40))
def test_nodes_below_the_least_probability_are_not_sent(items: list[PlanItem], increments: list[float]) -> None:
    """Where nodes take ever more time. Where some are cheaper than those before them, the best plan may hold a few."""
    times = (0.1 + np.cumsum(sorted(increments))).tolist()
    planner = AdaptivePlanner(cost_curve([(size + 1, 1, 0, seconds) for size, seconds in enumerate(times)]))
    trees = planner.plan(items, 100)
    for _ in range(2):  # of the same items, so that the value is that of these times
        sent = [p for tree in trees if tree.probabilities is not None for p in tree.probabilities.tolist()]
        assert all(probability >= planner.least_probability for probability in sent)
        trees = planner.plan(items, 100)


def test_the_least_probability_follows_the_time_of_nodes() -> None:
    """A node takes a twentieth of a plain pass, and a fifth of that counts. Two sequences yield two tokens."""
    planner = AdaptivePlanner(cost_curve([(1, 1, 0, 0.100), (101, 1, 0, 0.600)]))
    assert planner.least_probability == 0
    planner.plan([item(0.5)], 64)
    assert planner.least_probability == pytest.approx(0.01)
    planner.plan([item(0.5), item(0.5)], 64)
    assert planner.least_probability == pytest.approx(2 * 0.01 / 1.05)
    checked = AdaptivePlanner(FLAT, always_drafts=True)
    checked.plan([item(0.5)], 64)
    assert checked.least_probability == FixedPlanner().least_probability == 0


def test_the_time_of_drafting_counts_against_what_drafts_save() -> None:
    names = frozenset({"trie"})

    def num_drafted(probability: float, draft_seconds: float, planner: AdaptivePlanner) -> int:
        count = 0
        for _ in range(300):
            tree, seconds = EMPTY_TREE, None
            if planner.drafting_pays(names):
                tree, seconds, count = item(probability).tree, draft_seconds, count + 1
            (sent,) = planner.plan([PlanItem(tree, 1, 100, True, names, seconds)], 64)
            assert len(sent) == len(tree), "the time of drafting is spent, and a pass with drafts costs the same"
        return count

    # A pass takes 0.1 s, and a draft that is right half of the time saves 0.05 s.
    assert num_drafted(0.5, 0.02, AdaptivePlanner(FLAT)) == 300
    planner = AdaptivePlanner(FLAT)
    assert num_drafted(0.5, 0.20, planner) < 10
    assert num_drafted(1.0, 0.05, planner) > 100, "drafting is tried again"
    assert planner.drafting_pays(frozenset({"recycling"})), "each set of sources has a balance of its own"


def test_in_a_batch_drafting_pays_if_all_sequences_together_gain() -> None:
    names = frozenset({"trie"})
    planner = AdaptivePlanner(FLAT)
    for _ in range(50):
        good, bad = item(0.9), item(0.1)
        items = [each._replace(names=names, draft_seconds=0.02) for each in (good, bad)]
        planner.plan(items, 64)
    assert planner.drafting_pays(names), "0.9 + 0.1 tokens in a pass for two cost 0.04 s and save 0.05 s"
    for _ in range(50):
        items = [each._replace(names=names, draft_seconds=0.06) for each in (good, bad)]
        planner.plan(items, 64)
    assert not planner.drafting_pays(names)
    always = AdaptivePlanner(FLAT, always_drafts=True)
    for _ in range(50):
        always.plan(items, 64)
        always.record(1000.0 * len(items[0].tree))
    assert always.drafting_pays(names)
    assert len(always.plan(items, 64)[0]) == 1, "the times of passes have no effect"


def test_measured_passes_correct_the_curve() -> None:
    """By the curve a draft takes a twentieth of a plain pass, but it takes a whole one."""
    planner = AdaptivePlanner(cost_curve([(1, 1, 0, 0.100), (11, 1, 0, 0.150)]))
    assert [len(tree) for tree in planner.plan([item(0.4, 0.2, 0.1)], 64)] == [3]
    for number in range(100):
        (sent,) = planner.plan([item(*[0.9] * (number % 3))._replace(draft_seconds=0.0)], 64)
        planner.record(0.1 + 0.1 * len(sent))
    assert planner.plan([item(0.4, 0.2, 0.1)], 64) == [EMPTY_TREE]
    assert planner.least_probability == pytest.approx(0.2 * 0.05), "by the curve, so that a pass can correct this"


def test_the_time_of_drafting_is_compared_with_the_measured_time_of_a_pass() -> None:
    """On a busy machine drafting takes longer, and so does a pass."""
    names, planner = frozenset({"trie"}), AdaptivePlanner(FLAT)
    for _ in range(20):
        planner.plan([item(0.5)], 64)
        planner.record(10.0)
    for _ in range(50):
        planner.plan([item(0.5)._replace(names=names, draft_seconds=1.0)], 64)
        planner.record(10.0)
    assert planner.drafting_pays(names)


def test_passes_with_prompts_and_without_a_plan_do_not_correct_the_curve() -> None:
    planner = AdaptivePlanner(FLAT)
    planner.plan([item(0.5)], 64)  # of which no later time is
    for _ in range(50):
        planner.plan([item(0.5), item(0.5)._replace(num_pending=100, yields_token=False)], 1000)
        planner.record(50.0)
        planner.plan([PlanItem(EMPTY_TREE, 1, 100)], 64)
        planner.record(50.0)
    assert [len(tree) for tree in planner.plan([item(0.5)], 64)] == [1]
    assert planner._correction.factors == (1, 1)
