"""Sizes and costs of single calls to a TensorRT-LLM engine."""

from __future__ import annotations

import pytest

from pipeline.triton_models.call_costs import CallCosts
from tests.unit.triton_models.fakes import END_ID, letter_codec, text_tensors
from tests.unit.triton_models.test_bls import expected_ids, run_in
from tests.unit.triton_models.test_bls_chains import strict_bls

PROMPT = "ccddccddcc"


@pytest.fixture(autouse=True)
def every_draft_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CallCosts, "cut", lambda self, chain, chunk: chain)


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
    bls, targets = strict_bls("trie")
    run_in(bls, text_tensors(PROMPT, 40, strategy="trie", end_id=-1))
    assert len(recorded) == len(targets["trie"].calls) - 2  # nor does the last, after which nothing is planned
