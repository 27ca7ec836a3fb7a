"""Sizes and costs of single calls to an engine."""

from __future__ import annotations

import pytest

from pipeline.config.schema import PromptDraftConfig, SuppliedDraftConfig
from pipeline.decoding.drafting.drafter import Drafter
from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.sources.prompt import PromptSource
from pipeline.decoding.sources.supplied import SuppliedSource
from pipeline.decoding.tree import DraftTree, IntArray, chain
from pipeline.engine.submission import Submission
from pipeline.triton_models.call_costs import CallCosts
from tests.fakes import VOCAB_SIZE, make_request, make_scheduler, plain_decode
from tests.unit.triton_models.fakes import END_ID, TableTarget, letter_codec, text_tensors
from tests.unit.triton_models.test_bls import expected_ids, make_bls, run_in, statistics_of
from tests.unit.triton_models.test_bls_chains import strict_bls

PROMPT = "ccddccddcc"


def test_drafts_under_a_minimum_length_leave_room_for_the_targets_own_token() -> None:
    """A call that bans some end tokens ends at the minimum length, and its drafts one token before."""
    ends = frozenset({END_ID, *expected_ids(PROMPT, 40)[4:7]})
    bls, targets = strict_bls("trie", codec=letter_codec(ends))
    for _ in range(2):  # the second request has drafts
        run_in(bls, text_tensors(PROMPT, 40, strategy="trie", min_tokens=19))
    calls = [call for call in targets["trie"].calls if "draft_input_ids" in call]
    assert calls
    for call in calls:
        assert call["draft_input_ids"].shape[1] < call["request_output_len"].item()


def test_the_call_that_computes_the_prompt_is_no_measure_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[int] = []
    monkeypatch.setattr(CallCosts, "record", lambda self, passes, drafts, seconds: recorded.append(passes))
    bls, targets = strict_bls("trie", "drafting.planner=adaptive")
    run_in(bls, text_tensors(PROMPT, 40, strategy="trie", end_id=-1))
    assert len(recorded) == len(targets["trie"].calls) - 2  # nor does the last, after which nothing is planned


@pytest.mark.parametrize(("call_seconds", "pays"), [(0.0, True), (1.0, False)])
def test_a_call_takes_several_steps_where_calls_of_one_step_do_not_pay(
    monkeypatch: pytest.MonkeyPatch, call_seconds: float, pays: bool
) -> None:
    target = TableTarget()
    bls = make_bls(target, "drafting.planner=adaptive")
    asked = text_tensors(PROMPT, 40, strategy="trie", end_id=-1, stream=True, return_statistics=True)
    costs = bls._served[0].costs
    assert costs is not None
    for passes in [1, 4] * 30:
        costs.record(passes, 0, call_seconds + 0.0099 * passes)  # five passes in 0.05 s
    for name in ("record", "record_own_steps"):
        monkeypatch.setattr(CallCosts, name, lambda self, *figures: None)
    run_in(bls, asked)
    bls.drafter.reliability.take()
    target.calls.clear()

    statistics = statistics_of(run_in(bls, asked))

    assert statistics["output_ids"] == expected_ids(PROMPT, 40, frozenset())
    assert all("draft_input_ids" in call for call in target.calls)
    # The first call ends after its step in any case.
    assert {call["max_steps"].item() for call in target.calls[1:]} == ({1} if pays else {4})
    assert statistics["num_steps"] > len(target.calls) if not pays else statistics["num_steps"] == len(target.calls)
    assert sum(statistics["acceptance_lengths"]) == 40
    assert len(statistics["acceptance_lengths"]) == statistics["num_steps"]
    assert 0 < statistics["num_drafted_steps"] <= min(statistics["num_steps"], statistics["num_draft_tokens"])
    assert sum(row.accepted for row in bls.drafter.reliability.take()) > 10


def test_each_step_verifies_a_part_of_a_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    target = TableTarget()
    bls = make_bls(target, "drafting.planner=adaptive")
    monkeypatch.setattr(CallCosts, "num_steps", lambda self, tree, most: most)
    run_in(bls, text_tensors(PROMPT, 40, strategy="trie", end_id=-1, prediction="cdcdcd" * 8))
    assert {call["max_steps"].item() for call in target.calls if "draft_input_ids" in call} == {1}


def test_the_engine_goes_on_with_its_own_drafts_after_those_of_the_call() -> None:
    """The first step verifies the call's tree, and a source that drafts from the same text is left out of it."""
    asked: list[str] = []

    class Recorder(PromptSource):
        def propose(self, request_id: str, context: IntArray, budget: DraftBudget) -> DraftTree:
            asked.append(request_id)
            return super().propose(request_id, context, budget)

    drafter = Drafter([Recorder(PromptDraftConfig()), SuppliedSource(SuppliedDraftConfig())], VOCAB_SIZE)
    scheduler = make_scheduler(drafter=drafter)
    request = make_request([1, 2, 3, 1, 2, 3], 20)
    (result,) = scheduler.run([Submission(request, "trie", supplied=chain(plain_decode(request)[:2]), max_steps=3)])
    assert result.output_ids == plain_decode(request)[: len(result.output_ids)]
    assert (result.statistics.num_steps, len(asked)) == (3, 2)
    alone = Submission(make_request(max_new_tokens=20), "trie", supplied=chain([1]), only_supplied=True, max_steps=3)
    scheduler.run([alone])
    assert len(asked) == 2
