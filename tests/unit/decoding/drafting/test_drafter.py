"""Drafts of several sources are merged within one budget, and each source receives the outcome of its own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config.schema import LookaheadConfig, RecyclingDraftConfig, WindowDraftConfig
from pipeline.decoding.accept import accept
from pipeline.decoding.drafting.drafter import Drafter
from pipeline.decoding.request import StepResult
from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.sources.recycling import RecyclingSource
from pipeline.decoding.sources.window import WindowSource
from pipeline.decoding.tree import EMPTY_TREE, DraftTree, chain, check_tree, depths, select_nodes, tree_from_lists
from tests.unit.decoding.scripted import BUDGET, CONTEXT, VOCAB, Scripted, drafter_of, paths_of, step_of


def test_shared_prefixes_exist_once() -> None:
    first = Scripted("first", lambda _: tree_from_lists([5, 6, 7], [-1, 0, 0], [0.9, 0.5, 0.4]))
    second = Scripted("second", lambda _: tree_from_lists([8, 5, 6, 9], [-1, -1, 1, 2], [0.1, 0.8, 0.7, 0.6]))
    tree = drafter_of(first, second).propose("r", CONTEXT, BUDGET)
    assert paths_of(tree) == {(5,), (5, 6), (5, 7), (8,), (5, 6, 9)}


def test_the_budget_keeps_the_most_probable_paths() -> None:
    source = Scripted("a", lambda _: tree_from_lists([5, 6, 7, 8], [-1, 0, -1, 2], [0.2, 0.1, 0.7, 0.6]))
    tree = drafter_of(source).propose("r", CONTEXT, DraftBudget(4, 4))
    assert tree.token_ids.tolist() == [7, 8, 5, 6]
    other = Scripted("b", lambda _: chain([9], [0.01]))
    tree = drafter_of(source, other).propose("r", CONTEXT, DraftBudget(4, 4))
    assert tree.token_ids.tolist() == [7, 8, 5, 6]


def test_only_the_sources_named_take_part() -> None:
    sources = [Scripted(name, lambda _, token=token: chain([token])) for token, name in enumerate("abc")]
    drafter = Drafter(sources, VOCAB)
    drafter.start("r", CONTEXT, "", frozenset({"a", "c", "unknown"}))
    drafter.start("none", CONTEXT, "", frozenset())
    assert paths_of(drafter.propose("r", CONTEXT, BUDGET)) == {(0,), (2,)}
    assert not len(drafter.propose("none", CONTEXT, BUDGET))
    assert [source.active for source in sources] == [{"r"}, set(), {"r"}]
    drafter.stop("r")
    drafter.stop("r")
    assert not any(source.active for source in sources)


def test_a_source_may_be_left_out_of_the_next_proposal() -> None:
    drafter = drafter_of(*(Scripted(name, lambda _, token=token: chain([token])) for token, name in enumerate("ab")))
    drafter.leave_out("r", frozenset({"a"}))
    assert [paths_of(drafter.propose("r", CONTEXT, BUDGET)) for _ in range(2)] == [{(1,)}, {(0,), (1,)}]


def test_probabilities_follow_what_is_accepted_up_and_down() -> None:
    def promised(accepted: bool) -> float:
        drafter = drafter_of(Scripted("a", lambda _: chain([5], [0.5])))
        for _ in range(150):
            tree = drafter.propose("r", CONTEXT, BUDGET)
            drafter.update("r", step_of(tree, [0] if accepted else []))
        probabilities = drafter.propose("r", CONTEXT, BUDGET).probabilities
        assert probabilities is not None
        return float(probabilities[0])

    assert promised(accepted=True) > 0.85
    assert promised(accepted=False) < 0.1


def test_a_draft_that_a_later_planner_left_out_is_no_refusal() -> None:
    drafter = drafter_of(Scripted("a", lambda _: tree_from_lists([5, 6, 7], [-1, 0, 0], [0.5, 0.3, 0.1])))
    for _ in range(150):
        tree = drafter.propose("r", CONTEXT, BUDGET)
        assert paths_of(tree) == {(5,), (5, 6), (5, 7)}
        drafter.update("r", step_of(tree, [], bonus=5))
    probabilities = drafter.propose("r", CONTEXT, BUDGET).probabilities
    assert probabilities is not None
    assert probabilities[0] > 0.85
    assert probabilities[1] > 0.25


def test_what_is_often_accepted_is_trusted_more() -> None:
    good = Scripted("good", lambda _: chain([5], [0.3]))
    bad = Scripted("bad", lambda _: chain([6], [0.6]))
    drafter = drafter_of(good, bad)
    assert drafter.propose("r", CONTEXT, BUDGET).token_ids.tolist() == [6, 5]
    for _ in range(800):
        tree = drafter.propose("r", CONTEXT, BUDGET)
        drafter.update("r", step_of(tree, [tree.token_ids.tolist().index(5)]))
    tree = drafter.propose("r", CONTEXT, BUDGET)
    assert tree.token_ids.tolist() == [5, 6]
    assert tree.probabilities is not None
    assert tree.probabilities[0] > 0.75
    assert tree.probabilities[1] < 0.25


def test_nodes_are_credited_to_a_source_that_named_them() -> None:
    drafter = drafter_of(Scripted("a", lambda _: chain([5], [0.9])), Scripted("b", lambda _: chain([6], [0.8])))
    tree = drafter.propose("r", CONTEXT, BUDGET)
    assert tree.sources is not None
    assert dict(zip(tree.token_ids.tolist(), tree.sources.tolist(), strict=True)) == {5: 0, 6: 1}


def test_nodes_from_the_table_are_credited_to_recycling() -> None:
    drafter = drafter_of(Scripted("a", lambda _: chain([5], [0.1])), RecyclingSource(RecyclingDraftConfig(top_k=1)))
    ids, probs = np.asarray([[6]], np.int32), np.asarray([[0.9]], np.float32)
    drafter.update("r", StepResult(CONTEXT, EMPTY_TREE, [], [6], None, ids, probs))
    tree = drafter.propose("r", CONTEXT, BUDGET)
    assert tree.sources is not None
    assert dict(zip(tree.token_ids.tolist(), tree.sources.tolist(), strict=True)) == {5: 0, 6: 1}


def test_the_last_pass_raises_the_estimate_of_a_token_but_is_not_its_source() -> None:
    """The last row lists token 5 beside its choice, 6. The table learns the row for another context only."""
    two = Scripted("a", lambda _: tree_from_lists([5, 7], [-1, -1], [0.3, 0.3]))
    drafter = drafter_of(two, RecyclingSource(RecyclingDraftConfig(top_k=2)))
    alone = _chances(drafter, CONTEXT)
    assert alone[5] == alone[7]
    ids, probs = np.asarray([[6, 5]], np.int32), np.asarray([[0.5, 0.4]], np.float32)
    drafter.update("r", StepResult(CONTEXT, EMPTY_TREE, [], [6], None, ids, probs))
    context = np.asarray([*CONTEXT.tolist(), 6], np.int32)
    after = _chances(drafter, context)
    assert after[5] > after[7]
    tree = drafter.propose("r", context, BUDGET)
    assert tree.sources is not None
    assert not tree.sources.any()


def test_without_a_table_candidates_of_the_last_pass_name_no_token() -> None:
    drafter = drafter_of(Scripted("a", lambda _: chain([5], [0.3])))
    tree = drafter.propose("r", CONTEXT, BUDGET)
    ids, probs = np.asarray([[5, 6], [5, 7]], np.int32), np.full((2, 2), 0.5, np.float32)
    drafter.update("r", StepResult(CONTEXT, tree, [], [6], None, ids, probs))
    assert drafter.propose("r", CONTEXT, BUDGET).token_ids.tolist() == [5]


def _chances(drafter: Drafter, context: np.ndarray) -> dict[int, float]:
    tree = drafter.propose("r", context, BUDGET)
    assert tree.probabilities is not None
    return dict(zip(tree.token_ids.tolist(), tree.probabilities.tolist(), strict=True))


@pytest.mark.parametrize(("wanted", "asked"), [(10**6, VOCAB), (-3, 0)])
def test_no_more_candidates_are_asked_for_than_there_are(wanted: int, asked: int) -> None:
    greedy = Scripted("greedy", lambda _: EMPTY_TREE)
    greedy.needs_top_k = wanted
    assert drafter_of(greedy).needs_top_k("r") == asked


@pytest.mark.parametrize("other", [chain([9], [0.99]), chain([9, 8], [0.99, 0.98])])
def test_a_window_is_taken_whole_and_shares_nodes_with_others(other: DraftTree) -> None:
    window = tree_from_lists([5, 6, 6, 7], [-1, 0, 0, 1])  # two columns that guess the same
    window = DraftTree(window.token_ids, window.parents, None, None, 4)
    fixed = Scripted("window", lambda _: window)
    tree = drafter_of(Scripted("a", lambda _: other), fixed).propose("r", CONTEXT, DraftBudget(4, 4))
    assert paths_of(tree) == {(5,), (5, 6), (5, 6, 7), (9,)}
    assert tree.num_fixed == 3


def test_no_budget_no_draft() -> None:
    drafter = drafter_of(Scripted("a", lambda _: chain([5])))
    assert not len(drafter.propose("r", CONTEXT, DraftBudget(0, 4)))
    assert not len(drafter.propose("r", CONTEXT, DraftBudget(4, 0)))
    assert not drafter.failures["a"]
    assert drafter.propose("r", CONTEXT, DraftBudget(1, 1)).token_ids.tolist() == [5]


def test_recycling_asks_for_candidates_and_others_do_not() -> None:
    recycling = RecyclingSource(RecyclingDraftConfig(top_k=3))
    drafter = Drafter([recycling, Scripted("a", lambda _: chain([5]))], VOCAB)
    drafter.start("with", CONTEXT, "", frozenset({"recycling", "a"}))
    drafter.start("without", CONTEXT, "", frozenset({"a"}))
    drafter.start("plain", CONTEXT, "", frozenset())
    assert [drafter.needs_top_k(name) for name in ("with", "without", "plain")] == [3, 0, 0]


@settings(deadline=None)
@given(
    names=st.sets(st.sampled_from(["window", "recycling", "scripted"])),
    budget=st.builds(DraftBudget, st.integers(1, 40), st.integers(1, 8)),
    sizes=st.one_of(st.just((1, 1, 0)), st.tuples(st.integers(1, 5), st.integers(2, 4), st.integers(0, 4))),
    seed=st.integers(0, 1000),
)
def test_any_mix_decodes_the_same_text_within_its_budget(
    names: set[str], budget: DraftBudget, sizes: tuple[int, int, int], seed: int
) -> None:
    random = np.random.default_rng(seed)
    successor = random.integers(0, VOCAB, (VOCAB, 4))
    lookahead = LookaheadConfig.of(sizes[0], sizes[1], sizes[2])

    def target(tokens: list[int]) -> int:
        return int(successor[tokens[-1], tokens[-2] % 4])

    def propose(limit: DraftBudget) -> DraftTree:
        count = int(random.integers(0, limit.max_nodes + 1))
        parents = [int(random.integers(-1, node)) if node else -1 for node in range(count)]
        tree = tree_from_lists(random.integers(0, VOCAB, count).tolist(), parents)
        return select_nodes(tree, depths(tree) <= limit.max_depth)

    drafter = Drafter(
        [
            WindowSource(WindowDraftConfig(), lookahead),
            RecyclingSource(RecyclingDraftConfig(top_k=2)),
            Scripted("scripted", propose),
        ],
        VOCAB,
    )
    tokens = [1, 2, 3, 1, 2]
    expected = list(tokens)
    while len(expected) < 60:
        expected.append(target(expected))
    drafter.start("r", np.asarray(tokens, np.int32), "", frozenset(names))
    while len(tokens) < 40:
        context = np.asarray(tokens, np.int32)
        tree = drafter.propose("r", context, budget)
        check_tree(tree, VOCAB)
        paths_of(tree)
        assert len(tree) <= budget.max_nodes
        assert (depths(tree)[tree.num_fixed :] <= budget.max_depth).all()
        if tree.probabilities is not None:
            above = np.where(tree.parents < 0, 1.0, tree.probabilities[tree.parents])
            assert (tree.probabilities <= above).all()
        texts = [tokens]
        for token, parent in zip(tree.token_ids.tolist(), tree.parents.tolist(), strict=True):
            texts.append([*texts[parent + 1], token])
        choices = np.asarray([target(text) for text in texts], np.int32)
        top_ids = np.stack([choices, (choices + 1) % VOCAB], axis=1).astype(np.int32)
        top_probs = np.tile(np.asarray([0.8, 0.1], np.float32), (len(choices), 1))
        accepted = accept(tree, lambda node, _, choices=choices: int(choices[node + 1]))
        tokens += accepted.token_ids
        drafter.update("r", StepResult(context, tree, accepted.nodes, accepted.token_ids, choices, top_ids, top_probs))
    drafter.stop("r")
    assert tokens == expected[: len(tokens)]
    assert sum(drafter.failures.values()) == 0
