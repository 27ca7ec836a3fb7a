"""Requests of the BLS model to the engine: chains, chunks, and the width of the drafted tree."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.tree import EMPTY_TREE, chain, tree_from_lists
from pipeline.engine.traits import RuntimeLimits
from pipeline.triton_models.call_costs import CallCosts
from pipeline.triton_models.call_planning import (
    CHUNK_TOKENS,
    MAX_CHUNK_TOKENS,
    ChainCallPlanner,
    TreeCallPlanner,
    main_chain,
    tree_budget,
)

LIMITS = RuntimeLimits(max_seq_len=128, max_num_tokens=80, max_draft_len=6, chunked_context=False)


def test_the_main_chain_is_the_most_probable_branch():
    tree = tree_from_lists([1, 2, 3, 4, 5], [-1, -1, 0, 1, 3], [0.4, 0.5, 0.3, 0.2, 0.1])

    assert main_chain(tree, 9).token_ids.tolist() == [2, 4, 5]
    assert main_chain(tree, 2).token_ids.tolist() == [2, 4]
    assert len(main_chain(tree, 0)) == 0
    assert len(main_chain(EMPTY_TREE, 3)) == 0


def test_without_probabilities_the_first_branch_is_the_main_one():
    assert main_chain(tree_from_lists([1, 2, 3], [-1, -1, 0]), 9).token_ids.tolist() == [1, 3]


@given(
    max_seq_len=st.integers(16, 200),
    max_num_tokens=st.integers(8, 200),
    max_draft_len=st.integers(0, 12),
    chunked=st.booleans(),
    drafted=st.integers(0, 14),
    wanted=st.integers(1, 200),
    accepted=st.randoms(use_true_random=False),
    prompt=st.integers(1, 200),
)
def test_a_whole_request_never_asks_for_what_the_engine_refuses(
    max_seq_len, max_num_tokens, max_draft_len, chunked, drafted, wanted, accepted, prompt
):
    """Any engine, any drafts, any luck: every call fits, and the output is complete."""
    limits = RuntimeLimits(max_seq_len, max_num_tokens, max_draft_len, chunked)
    room = limits.usable_seq_len - prompt
    if room < 1 or prompt > limits.longest_prompt:
        return  # refused before the first call
    steps = ChainCallPlanner(limits, max_drafts=max_draft_len, costs=None)
    context, remaining = prompt, min(wanted, room)
    while remaining:
        step = steps.next(chain([1] * drafted), context, remaining)
        num_drafts = len(step.tree)
        assert context <= limits.longest_prompt
        assert 1 <= step.num_tokens <= remaining
        if num_drafts:
            assert num_drafts <= max_draft_len
            assert context + num_drafts <= limits.longest_prompt
            assert step.num_tokens == num_drafts + 1
            assert context + step.num_tokens + num_drafts <= limits.max_seq_len
            new = accepted.randint(1, step.num_tokens)
        else:
            assert step.num_tokens <= limits.usable_seq_len - context
            new = step.num_tokens
        context, remaining = context + new, remaining - new


def test_chunks_grow_while_nothing_is_drafted_and_shrink_when_something_is():
    steps = ChainCallPlanner(LIMITS, max_drafts=6, costs=None)
    asked = [steps.next(EMPTY_TREE, 10, 99).num_tokens for _ in range(5)]

    assert asked == [CHUNK_TOKENS, 2 * CHUNK_TOKENS, MAX_CHUNK_TOKENS, MAX_CHUNK_TOKENS, MAX_CHUNK_TOKENS]
    assert steps.next(chain([1, 2]), 10, 99).num_tokens == 3
    assert steps.next(EMPTY_TREE, 10, 99).num_tokens == CHUNK_TOKENS


@pytest.mark.parametrize(
    ("context_len", "remaining", "num_drafts", "num_tokens"),
    [(78, 2, 1, 2), (78, 3, 0, 3), (76, 4, 3, 4), (76, 5, 3, 4), (75, 9, 4, 5), (77, 5, 0, 5), (80, 9, 0, 9)],
)
def test_a_call_decodes_the_rest_if_its_context_would_be_too_long_for_a_next_one(
    context_len, remaining, num_drafts, num_tokens
):
    """A prompt may have 80 tokens."""
    call = ChainCallPlanner(LIMITS, max_drafts=6, costs=None).next(chain([1] * 6), context_len, remaining)

    assert (len(call.tree), call.num_tokens) == (num_drafts, num_tokens)


def test_the_last_token_is_asked_for_without_drafts():
    def step(num_drafted: int, context_len: int, remaining: int) -> tuple[int, int]:
        steps = ChainCallPlanner(RuntimeLimits(4096, 4096, 10, False), max_drafts=30, costs=None)
        found = steps.next(chain([1] * num_drafted), context_len, remaining)
        return len(found.tree), found.num_tokens

    assert step(8, 100, 1) == (0, 1)
    assert step(8, 100, 2) == (1, 2)
    assert step(30, 100, 500) == (10, 11)
    assert step(0, 100, 500) == (0, 4)


def test_the_drafted_tree_is_wide_enough_for_its_best_branch():
    assert tree_budget(DraftBudget(16, 32), LIMITS) == DraftBudget(24, 6)
    assert tree_budget(DraftBudget(2, 32), LIMITS) == DraftBudget(8, 2)
    assert tree_budget(DraftBudget(0, 32), LIMITS) == DraftBudget(0, 0)


def learnt(fixed: float, per_pass: float, per_draft: float, noise: float = 0.0, num_calls: int = 60) -> CallCosts:
    costs, random = CallCosts(), np.random.default_rng(0)
    for _ in range(num_calls):
        drafts = int(random.integers(0, 7))
        passes = 1 if drafts else int(random.integers(1, 9))
        seconds = fixed + per_pass * passes + per_draft * drafts
        costs.record(passes, drafts, seconds * (1 + noise * random.standard_normal()))
    return costs


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_likely_drafts_are_kept_where_they_cost_little_and_dropped_where_they_cost_more_than_a_pass(noise):
    likely = chain([1, 2, 3, 4, 5, 6], [0.9, 0.85, 0.8, 0.75, 0.7, 0.65])

    assert learnt(0.001, 0.010, 0.0002, noise).best_num_drafts(likely, 4) == 6
    assert learnt(0.001, 0.010, 0.02, noise).best_num_drafts(likely, 4) == 0


def test_less_of_a_chain_is_sent_the_less_likely_it_is_and_none_where_a_chunk_is_worth_more():
    costs = learnt(0.004, 0.010, 0.002)

    assert costs.best_num_drafts(chain([1, 2, 3, 4], [0.95, 0.9, 0.85, 0.8]), 4) == 4
    assert costs.best_num_drafts(chain([1, 2, 3, 4], [0.1, 0.02, 0.01, 0.0]), 4) == 0
    assert 0 < costs.best_num_drafts(chain([1, 2, 3, 4], [0.8, 0.4, 0.05, 0.01]), 4) < 4
    # What counts is what the nodes are worth, not their order.
    bushy = tree_from_lists([1, 2, 3, 4], [-1, -1, 1, 2], [0.01, 0.8, 0.4, 0.05])
    assert 0 < costs.best_num_drafts(bushy, 4) < 4


def test_costs_follow_the_load():
    costs = learnt(0.001, 0.010, 0.0002)
    likely = chain([1, 2, 3, 4], [0.6, 0.4, 0.2, 0.1])
    before = costs.best_num_drafts(likely, 4)
    for number in range(120):  # a full batch: every draft token costs as much as a pass
        costs.record(1, number % 5, 0.02 + 0.012 * (number % 5))
    assert costs.best_num_drafts(likely, 4) < before


def test_a_call_goes_on_unless_the_tree_of_another_call_is_worth_its_cost():
    likely, unlikely = chain([1, 2, 3], [0.9, 0.8, 0.7]), chain([1, 2, 3], [0.1, 0.02, 0.01])
    costs = learnt(0.010, 0.010, 0.0)

    assert [costs.num_steps(tree, 4) for tree in (likely, unlikely, EMPTY_TREE)] == [1, 4, 4]
    # The engine's own drafts turn out to be good.
    for _ in range(100):
        costs.record_own_steps(3, 6)
    assert costs.num_steps(likely, 4) == 4
    cheap = learnt(0.001, 0.010, 0.0)
    for _ in range(100):
        cheap.record_own_steps(3, 6)
    assert cheap.num_steps(likely, 4) == 1


def test_pieces_of_a_stream_take_as_many_passes_as_fit_in_their_time():
    assert learnt(0.003, 0.006, 0.0).num_passes(0.05, 16) == 8
    assert learnt(0.003, 0.0005, 0.0).num_passes(0.05, 16) == 16
    assert learnt(0.003, 0.3, 0.0).num_passes(0.05, 16) == 1
    assert learnt(0.003, 0.0005, 0.0).num_passes(0.0502, 200) == 100


def test_a_chunk_shares_the_fixed_time_of_a_call():
    costs = learnt(0.010, 0.010, 0.0)

    assert costs.best_num_drafts(chain([1], [0.5]), 4) == 0  # 1 token in 0.0125 s against 1.5 in 0.02 s
    assert costs.best_num_drafts(chain([1], [0.5]), 1) == 1


def test_trees_without_probabilities_are_sent_whole():
    costs = learnt(0.001, 0.001, 1.0)

    assert costs.best_num_drafts(chain([1, 2, 3]), 4) == 3
    assert costs.best_num_drafts(EMPTY_TREE, 4) == 0


def test_the_first_calls_send_the_whole_chain_and_end_after_a_step():
    unlikely = chain([1, 2, 3], [0.1, 0.1, 0.1])
    few, enough = (learnt(0.001, 0.010, 0.02, num_calls=num_calls) for num_calls in (7, 8))

    assert (few.best_num_drafts(unlikely, 4), enough.best_num_drafts(unlikely, 4)) == (3, 0)
    assert (few.num_steps(EMPTY_TREE, 4), enough.num_steps(EMPTY_TREE, 4)) == (1, 4)
    assert few.num_passes(0.05, 16) is None
    assert enough.num_passes(0.05, 16) is not None


@pytest.mark.parametrize(
    ("is_watched", "has_prediction", "per_pass", "is_first", "steps_with_drafts", "steps_without"),
    [
        (True, False, None, True, 1, 1),  # the client waits for a token
        (False, False, 0.001, True, 1, 1),
        (True, False, None, False, 1, 4),
        (True, True, 0.02, False, 1, 4),  # each step verifies a part of the prediction
        (True, False, 0.02, False, 2, 2),  # two passes in 0.05 s
        (True, False, 0.001, False, 4, 4),
        (False, False, 0.001, False, 16, 16),
    ],
)
def test_steps_of_a_call_to_an_engine_that_verifies_trees(
    is_watched, has_prediction, per_pass, is_first, steps_with_drafts, steps_without
):
    costs = None if per_pass is None else learnt(1.0, per_pass, 0.0)  # calls cost far more than passes
    planner = TreeCallPlanner(True, is_watched, has_prediction, costs)
    likely = chain([1, 2], [0.9, 0.8])

    assert planner.next(likely, 30, is_first) == (likely, 30, steps_with_drafts)
    assert planner.next(EMPTY_TREE, 30, is_first) == (EMPTY_TREE, 30, steps_without)


@pytest.mark.parametrize(
    ("is_stream", "is_watched", "has_window", "is_first", "per_pass", "num_tokens"),
    [
        (False, False, False, True, None, 64),
        (True, True, False, True, None, 1),  # the client waits for a token
        (False, True, False, True, None, 4),  # only the text is searched for stop words
        (True, True, False, False, None, 4),
        (True, True, False, False, 0.02, 2),
        (True, True, True, False, 0.02, 16),
    ],
)
def test_tokens_of_a_call_without_drafts_to_an_engine_that_verifies_trees(
    is_stream, is_watched, has_window, is_first, per_pass, num_tokens
):
    costs = None if per_pass is None else learnt(0.0, per_pass, 0.0)
    planner = TreeCallPlanner(is_stream, is_watched, False, costs)

    for remaining in (1, 100):
        call = planner.next_without_drafts(has_window, remaining, is_first)
        assert call == (EMPTY_TREE, min(num_tokens, remaining), None)


def test_a_chain_ends_with_its_last_draft_that_pays():
    planner = ChainCallPlanner(LIMITS, 6, learnt(0.001, 0.010, 0.004))

    assert planner.next(chain([1, 2, 3], [0.9, 0.8, 0.01]), 10, 50).tree.token_ids.tolist() == [1, 2]
