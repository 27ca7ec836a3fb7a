"""Draft chains for requests that TensorRT-LLM decodes: bounded, learnt from accepted tokens, equal on all ranks."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config.schema import PromptDraftConfig, TrieDraftConfig
from pipeline.llmapi import drafts as module
from pipeline.llmapi.drafts import ChainDrafts, room_for_drafts
from pipeline.llmapi.settings import DraftSettings

SETTINGS = DraftSettings(method="trie", max_draft_len=6, sources=(TrieDraftConfig(max_bytes=1 << 20),), shared=True)
LOOP = [5, 6, 7, 8, 9] * 4


def run(drafts: ChainDrafts, request_id: int, text: list[int], prompt_len: int, max_len: int = 6) -> tuple[int, int]:
    """Decode `text` behind its prompt with greedy verification; steps taken, and tokens drafted."""
    tokens, steps, drafted = text[:prompt_len], 0, 0
    while len(tokens) < len(text):
        drafts.next_step()
        room = room_for_drafts(len(tokens), prompt_len, len(text) - prompt_len)
        chain = drafts.draft(request_id, tokens, prompt_len, min(max_len, room))
        assert len(chain) <= min(max_len, room, SETTINGS.max_draft_len)
        steps, drafted = steps + 1, drafted + len(chain)
        for token in chain:
            if token != text[len(tokens)]:
                break
            tokens.append(token)
        tokens.append(text[len(tokens)])
    drafts.finish(request_id, tokens)
    return steps, drafted


def test_a_text_that_repeats_itself_takes_few_steps():
    steps, drafted = run(ChainDrafts(SETTINGS), 1, LOOP + LOOP, 10)
    assert steps < 12  # of 30 tokens
    assert drafted > 20


def test_what_one_request_wrote_is_drafted_for_the_next_even_its_last_tokens():
    text = [40, *range(100, 130)]
    drafts = ChainDrafts(SETTINGS)
    first, _ = run(drafts, 1, text, 1)
    assert first == 30
    second, _ = run(drafts, 2, text, 1)
    assert second <= 8
    assert drafts.draft(3, text[:-1], 30, 1) == [text[-1]]


def test_prompts_are_private():
    drafts = ChainDrafts(SETTINGS)
    secret = [1, 2, 3, 4, 5, 6, 7, 8]
    drafts.draft(1, secret, 8, 6)
    assert set(drafts.draft(2, [1, 2, 3], 3, 6)) <= {1, 2, 3}


def test_without_the_trie_requests_know_their_own_text_only():
    own = DraftSettings(method="trie", max_draft_len=6, sources=(PromptDraftConfig(),), shared=False)
    drafts = ChainDrafts(own)
    run(drafts, 1, LOOP, 1)
    assert set(drafts.draft(2, [5, 6, 7], 3, 6)) <= {5, 6, 7}
    assert drafts.draft(3, LOOP, 20, 6)[:3] == [5, 6, 7]


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 3), st.lists(st.integers(0, 3), min_size=2, max_size=20)), max_size=5))
def test_two_ranks_that_see_the_same_tokens_draft_the_same(texts):
    ranks = [ChainDrafts(SETTINGS), ChainDrafts(SETTINGS)]
    for request_id, text in texts:
        for place in range(1, len(text)):
            chains = [rank.draft(request_id, text[:place], 1, 6) for rank in ranks]
            assert chains[0] == chains[1]
        for rank in ranks:
            rank.finish(request_id, text)


def test_it_travels_as_its_settings():
    drafts = ChainDrafts(SETTINGS)
    run(drafts, 1, LOOP, 1)
    arrived = pickle.loads(pickle.dumps(drafts))
    assert arrived.settings == SETTINGS
    assert set(arrived.draft(1, [5, 6], 2, 6)) <= {5, 6}
    assert len(pickle.dumps(drafts)) < 2000


def test_requests_that_ended_without_telling_are_forgotten(monkeypatch):
    monkeypatch.setattr(module, "FORGET_AFTER", 10)
    drafts = ChainDrafts(SETTINGS)
    for _ in range(25):
        drafts.next_step()
        drafts.draft(1, LOOP, 20, 6)
        if drafts._num_steps == 3:
            drafts.draft(2, LOOP, 20, 6)
    assert set(drafts._running) == {1}
    assert drafts.draft(2, LOOP, 20, 6)  # back again, as a new one


def test_an_id_that_is_used_again_is_another_request():
    drafts = ChainDrafts(SETTINGS)
    drafts.draft(1, LOOP, 20, 6)
    assert set(drafts.draft(1, [200, 201], 2, 6)) <= {200, 201}
    assert drafts.num_failures == 0


def test_a_failing_source_costs_speed_only(monkeypatch):
    drafts = ChainDrafts(SETTINGS)
    assert drafts.draft(1, LOOP, 20, 6)

    def fail(*arguments: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(module, "main_chain", fail)
    assert drafts.draft(1, [*LOOP, 5], 20, 6) == []
    assert drafts.num_failures == 1
    monkeypatch.undo()
    assert drafts.draft(1, [*LOOP, 5, 6], 20, 6)


@pytest.mark.parametrize(("num_tokens", "room"), [(10, 4), (13, 1), (14, 0), (15, 0), (20, 0)])
def test_room_leaves_one_token_to_the_target(num_tokens, room):
    assert room_for_drafts(num_tokens, prompt_len=10, max_new_tokens=5) == room


def test_without_room_there_is_no_draft():
    assert ChainDrafts(SETTINGS).draft(1, LOOP, 20, 0) == []
