"""Sizes and costs of single calls to an engine."""

from __future__ import annotations

import pytest

from pipeline.triton_models.call_costs import CallCosts
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
def test_drafts_that_do_not_pay_for_a_call_of_their_own_are_not_sent_and_learned_from(
    monkeypatch: pytest.MonkeyPatch, call_seconds: float, pays: bool
) -> None:
    target = TableTarget()
    bls = make_bls(target, "drafting.planner=adaptive")
    asked = text_tensors(PROMPT, 40, strategy="trie", end_id=-1, return_statistics=True)
    costs = bls._served[0].costs
    assert costs is not None
    for passes, drafts in [(1, 4), (4, 0)] * 30:
        costs.record(passes, drafts, call_seconds + 0.01 * passes + call_seconds * drafts)
    monkeypatch.setattr(CallCosts, "record", lambda self, passes, drafts, seconds: None)
    run_in(bls, asked)
    bls._drafter.reliability.take()
    target.calls.clear()

    statistics = statistics_of(run_in(bls, asked))

    assert statistics["output_ids"] == expected_ids(PROMPT, 40, frozenset())
    num_sent = sum("draft_input_ids" in call for call in target.calls)
    # The first call ends with the first token in any case.
    assert (num_sent, len(target.calls)) == ((7, 7) if pays else (1, 11))
    assert (statistics["num_steps"], statistics["num_accepted_tokens"]) == ((7, 33) if pays else (40, 0))
    assert sum(row.accepted for row in bls._drafter.reliability.take()) > 20
