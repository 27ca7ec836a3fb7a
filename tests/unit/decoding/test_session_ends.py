"""The decode loop driven by hand: where an output ends, calls to the drafter, counts."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import cast
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.decoding.drafting.drafter import Drafter
from pipeline.decoding.noise import NO_NOISE, NoiseKey
from pipeline.decoding.request import FinishReason, GenerationRequest, SamplingParams, StepResult
from pipeline.decoding.session import GenerationStatistics, Session, StepOutcome, outcome_of_tokens
from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.tree import EMPTY_TREE, DraftTree, IntArray, chain, depths, tree_from_lists
from tests.fakes import make_request
from tests.kernel_examples import texts

BUDGET = DraftBudget(8, 6)


@dataclass
class Recorder:
    """Drafts one branch as long as it may, and first tokens for the rest of the room; records all that it receives."""

    started: list[tuple[list[int], str, frozenset[str]]] = field(default_factory=list)
    asked: list[tuple[list[int], DraftBudget]] = field(default_factory=list)
    reported: list[tuple[list[int], int, list[int], list[int]]] = field(default_factory=list)
    last: StepResult | None = None
    num_stops: int = 0
    noise: NoiseKey | None = None

    def start(
        self, request_id: str, prompt_ids: IntArray, namespace: str, names: frozenset[str], noise: NoiseKey
    ) -> None:
        self.started.append((prompt_ids.tolist(), namespace, names))
        self.noise = noise

    def propose(self, request_id: str, context: IntArray, budget: DraftBudget) -> DraftTree:
        self.asked.append((context.tolist(), budget))
        depth = min(budget.max_nodes, budget.max_depth)
        tokens = [5] * depth + [*range(6, 6 + budget.max_nodes - depth)]
        return tree_from_lists(tokens, [*range(-1, depth - 1), *[-1] * (budget.max_nodes - depth)])

    def update(self, request_id: str, step: StepResult) -> None:
        self.last = step
        self.reported.append((step.context.tolist(), len(step.tree), list(step.nodes), list(step.token_ids)))

    def stop(self, request_id: str) -> None:
        self.num_stops += 1


def session_of(
    request: GenerationRequest,
    max_seq_len: int = 100,
    names: frozenset[str] = frozenset({"trie"}),
    budget: DraftBudget = BUDGET,
) -> tuple[Session, Recorder]:
    recorder = Recorder()
    return Session(request, cast(Drafter, recorder), names, budget, max_seq_len), recorder


def ended(whole: list[int], room: int, ends: frozenset[int], stops: tuple[tuple[int, ...], ...]) -> tuple[int, str]:
    """The reference, token by token: the part of a text that belongs to the output, and the reason of its end."""
    for length in range(1, len(whole) + 1):
        if whole[length - 1] in ends:
            return length, "end_token"
        if any(tuple(whole[:length][-len(stop) :]) == stop for stop in stops):
            return length, "stop_words"
        if length == room:
            return length, "length"
    raise AssertionError("the text is longer than any output")


@given(
    texts(4, 40, min_len=40),
    texts(5, 40, min_len=40),
    st.integers(1, 40),
    st.integers(4, 43),
    st.sets(st.integers(3, 9), max_size=2),
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), max_size=2),
)
def test_outputs_end_at_the_same_token_however_many_come_at_once(
    whole: list[int], sizes: list[int], max_new: int, max_seq_len: int, ends: set[int], stops: list[list[int]]
) -> None:
    prompt, end_ids, stop_sequences = [1, 2, 0], frozenset(ends), tuple(map(tuple, stops))
    request = make_request(prompt, max_new, end_ids=end_ids, stop_sequences=stop_sequences)
    length, reason = ended(whole, min(max_new, max_seq_len - 3), end_ids, stop_sequences)
    session, recorder = session_of(request, max_seq_len)
    sent: list[list[int]] = []
    while not session.finished:
        start = len(session.output_ids)
        tree = session.propose()
        assert len(tree) <= max_seq_len - 3 - start, "the sequence has no room for the drafts"
        deepest = int(depths(tree).max(initial=0))
        room = min(max_new, max_seq_len - 3) - start
        assert deepest == min(BUDGET.max_depth, room - 1), "the target adds a token of its own"
        tokens = whole[start : start + min(sizes.pop(0) + 1, deepest + 1)]
        sent.append(tokens)
        kept = session.advance(tree, StepOutcome(list(range(len(tokens) - 1)), tokens))
        assert recorder.reported[-1] == (prompt + whole[:start], len(tree), list(range(len(tokens) - 1)), kept)
    assert session.output_ids == whole[:length]
    assert session.context.tolist() == prompt + whole[:length]
    assert session.finish_reason is not None
    assert session.finish_reason.value == reason
    assert sum(session.statistics.acceptance_lengths) == length
    assert session.statistics.num_steps == len(session.statistics.acceptance_lengths) == len(sent)
    last = min(len(sent[-1]) - 1, session.statistics.acceptance_lengths[-1])
    assert session.statistics.num_accepted_tokens == sum(len(tokens) - 1 for tokens in sent[:-1]) + last
    assert session.statistics.num_draft_tokens == sum(num for _, num, _, _ in recorder.reported)
    assert session.statistics.num_drafted_steps == sum(num > 0 for _, num, _, _ in recorder.reported)
    assert recorder.num_stops == 1


def test_drafts_keep_to_the_budget() -> None:
    session, recorder = session_of(make_request([1, 2], 50, namespace="tenant"))
    assert [len(session.propose(least)) for least in (0.0, 0.25)] == [8, 8]
    assert [budget for _, budget in recorder.asked] == [BUDGET, BUDGET._replace(least_probability=0.25)]
    assert recorder.started == [([1, 2], "tenant", frozenset({"trie"}))]


@pytest.mark.parametrize(
    ("budget", "max_new_tokens", "num_asked"),
    [(DraftBudget(0, 6), 9, 0), (DraftBudget(1, 6), 9, 1), (BUDGET, 1, 0), (BUDGET, 2, 1)],
)
def test_drafts_are_asked_for_where_a_node_fits(budget: DraftBudget, max_new_tokens: int, num_asked: int) -> None:
    session, recorder = session_of(make_request([1, 2], max_new_tokens), budget=budget)
    assert (len(session.propose()) > 0, len(recorder.asked)) == (num_asked > 0, num_asked)


def test_counts_begin_at_zero() -> None:
    assert not any(getattr(GenerationStatistics(), each.name) for each in fields(GenerationStatistics))


def test_without_sources_no_source_is_called() -> None:
    session, recorder = session_of(make_request([1, 2], 2), names=frozenset())
    assert session.propose() is EMPTY_TREE
    session.advance(EMPTY_TREE, StepOutcome([], [4]))
    session.advance(EMPTY_TREE, StepOutcome([], [4]))
    session.close()
    assert recorder == Recorder()


@pytest.mark.parametrize("finished", [True, False])
def test_cancelling_ends_what_has_not_ended(finished: bool) -> None:
    session, recorder = session_of(make_request([1, 2], 1 if finished else 2))
    session.advance(EMPTY_TREE, StepOutcome([], [4]))
    session.cancel()
    assert session.finish_reason is (FinishReason.LENGTH if finished else FinishReason.CANCELLED)
    session.close()
    assert recorder.num_stops == 1, "by then the id may be another request's"


def test_a_request_whose_last_step_cannot_be_learned_is_stopped() -> None:
    """The candidates of a step come from the target, which may lack memory for them."""
    session, recorder = session_of(make_request([1], 1))
    session.take(EMPTY_TREE, StepOutcome([], [4], None, Mock(side_effect=MemoryError)))
    with pytest.raises(MemoryError):
        session.close()
    assert recorder.num_stops == 1


def test_what_was_taken_is_learned_once_and_before_anything_else() -> None:
    session, recorder = session_of(make_request([1], 20))
    for token in (4, 5):
        session.take(EMPTY_TREE, StepOutcome([], [token]))
    assert recorder.reported == []
    session.propose()
    assert [tokens for _, _, _, tokens in recorder.reported] == [[4, 5]], "steps without drafts are one"
    session.take(EMPTY_TREE, StepOutcome([], [6]))
    session.cancel()
    session.learn()
    assert [context for context, _, _, _ in recorder.reported] == [[1], [1, 4, 5]]


@pytest.mark.parametrize(
    ("tree", "outcome"),
    [
        (chain([4]), StepOutcome([0], [4, 5])),
        (EMPTY_TREE, StepOutcome([], [4], None, lambda: (np.zeros((1, 1), np.int32), np.ones((1, 1), np.float32)))),
    ],
    ids=["drafts", "candidates"],
)
def test_a_step_with_drafts_or_candidates_is_learned_alone(tree: DraftTree, outcome: StepOutcome) -> None:
    session, recorder = session_of(make_request([1], 20))
    session.take(tree, outcome)
    session.take(EMPTY_TREE, StepOutcome([], [6]))
    session.learn()
    assert [tokens for _, _, _, tokens in recorder.reported] == [outcome.token_ids, [6]]


def test_tokens_of_plain_passes_are_a_step_each() -> None:
    session, _ = session_of(make_request([1], 20))
    assert session.statistics.mean_acceptance_length == 0.0
    session.advance(EMPTY_TREE, StepOutcome([], [4, 5, 6], num_steps=3))
    first = session.statistics.time_to_first_token_s
    session.advance(chain([7, 8]), outcome_of_tokens(chain([7, 8]), [7, 9]))
    assert session.statistics.acceptance_lengths == [1, 1, 1, 2]
    assert session.statistics.num_steps == 4
    assert session.statistics.mean_acceptance_length == 5 / 4
    assert session.statistics.num_accepted_tokens == 1
    assert 0 < first == session.statistics.time_to_first_token_s < session.statistics.total_seconds < 600
    assert 0 < session.statistics.draft_seconds < 600


def test_the_time_of_drafting_is_reported_once() -> None:
    session, _ = session_of(make_request([1], 20))
    session.propose()
    first = session.statistics.draft_seconds
    assert first > 0
    assert [session.take_draft_seconds() for _ in range(2)] == [first, 0]
    session.propose()
    assert first + session.take_draft_seconds() == pytest.approx(session.statistics.draft_seconds)


def test_the_last_emitted_token_is_the_targets_own_for_any_draft() -> None:
    assert outcome_of_tokens(chain([7, 8]), [7, 8]).nodes == [0]
    assert outcome_of_tokens(chain([7, 8]), [7, 8, 8]).nodes == [0, 1]


def test_sources_see_what_the_target_said_beside_its_tokens() -> None:
    session, recorder = session_of(make_request([1], 20))
    choices, ids, probs = np.asarray([4], np.int32), np.asarray([[4, 5]], np.int32), np.asarray([[0.5, 0.2]])
    session.advance(EMPTY_TREE, StepOutcome([], [4], choices, lambda: (ids, probs)))
    assert recorder.last is not None
    assert (recorder.last.choices, recorder.last.top_ids, recorder.last.top_probs) == (choices, ids, probs)


def test_what_will_be_emitted_is_part_of_the_context_to_come() -> None:
    session, _ = session_of(make_request([1, 2], 20))
    np.testing.assert_array_equal(session.context_with([3, 4]), [1, 2, 3, 4])
    np.testing.assert_array_equal(session.context_with([]), [1, 2])


@pytest.mark.parametrize(
    ("sampling", "keyed_noise", "expected"),
    [
        (SamplingParams(temperature=0.5, seed=2**64 - 1), True, NoiseKey(np.uint64(2**64 - 1), 0.5)),
        (SamplingParams(temperature=1, top_k=1, seed=3), True, NO_NOISE),
        (SamplingParams(temperature=0.5, seed=3), False, NO_NOISE),
        (SamplingParams(temperature=2, seed=3), True, NoiseKey(np.uint64(3), 2.0)),
        (SamplingParams(temperature=2.1, seed=3), True, NO_NOISE),
    ],
    ids=["sampled", "greedy", "noise of another sampler", "hottest", "too hot: would change the weights of others"],
)
def test_drafts_follow_the_noise_of_a_target_that_samples_with_it(
    sampling: SamplingParams, keyed_noise: bool, expected: NoiseKey
) -> None:
    recorder = Recorder()
    arguments = make_request([1], sampling=sampling), cast(Drafter, recorder), frozenset({"trie"}), BUDGET, 100
    if keyed_noise:
        Session(*arguments, keyed_noise=True)
    else:
        Session(*arguments)
    assert recorder.noise == expected
