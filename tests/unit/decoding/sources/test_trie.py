"""The trie as a draft source: prompts are private, outputs are shared in their namespace."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.config.schema import PromptDraftConfig, TrieDraftConfig
from pipeline.decoding.request import StepResult
from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.sources.prompt import MAX_KEPT, MAX_KEPT_TOKENS, SHARED_TOKENS, PromptSource
from pipeline.decoding.sources.trie import TrieSource
from pipeline.decoding.tree import EMPTY_TREE, agreeing_path, chain
from pipeline.decoding.trie import Trie
from pipeline.decoding.trie.snapshot import save_trie
from pipeline.errors import ConfigError, UserError
from tests.unit.decoding.trie.integrity import check

NONE = np.empty(0, np.int32)
PROMPT = np.asarray([2, 10, 11, 12, 13, 14, 15, 2, 10, 11], np.int32)


def trie_source(**settings: object) -> TrieSource:
    return TrieSource(TrieDraftConfig(max_bytes=1 << 20, **settings))


def emit(source: TrieSource | PromptSource, request_id: str, context: list[int], tokens: list[int]) -> None:
    source.update(request_id, StepResult(np.asarray(context, np.int32), EMPTY_TREE, [], tokens))


def drafted(source: TrieSource | PromptSource, request_id: str, context: list[int], nodes: int = 8) -> list[int]:
    return source.propose(request_id, np.asarray(context, np.int32), DraftBudget(nodes, 6)).token_ids.tolist()


@pytest.mark.parametrize("source", [trie_source(), PromptSource(PromptDraftConfig())])
def test_the_prompt_is_used_whole_also_behind_an_end_token(source):
    source.start("r", PROMPT, "")
    tree = source.propose("r", PROMPT, DraftBudget(8, 6))
    assert len(agreeing_path(tree, [12, 13, 14, 15])) == 4


@pytest.mark.parametrize("source", [trie_source(), PromptSource(PromptDraftConfig())])
def test_output_is_retrievable_in_the_very_next_step(source):
    source.start("r", PROMPT, "")
    context = [*PROMPT.tolist(), 50]
    emit(source, "r", PROMPT.tolist(), [50, 51, 52, 50])
    assert drafted(source, "r", [*context, 51, 52, 50], 2)[0] == 51


def test_another_request_sees_output_when_it_ends_but_never_the_prompt():
    source = trie_source()
    source.start("a", PROMPT, "")
    emit(source, "a", PROMPT.tolist(), [60, 61, 62])
    source.start("b", np.asarray([1, 60], np.int32), "")
    source.stop("a")
    source.stop("a")
    assert source.trie.count(np.asarray([61], np.int32)) == 1
    assert drafted(source, "b", [1, 60], 1) == [61]
    assert 62 in drafted(source, "b", [1, 60], 8)
    assert not set(drafted(source, "b", [1, 10, 11], 64)) & {12, 13, 14, 15}


def test_another_request_sees_parts_of_a_long_output_and_strings_across_them():
    source, output = trie_source(), np.arange(1000, 1000 + 3 * SHARED_TOKENS, dtype=np.int32)
    source.start("a", PROMPT, "")
    for begin in range(0, len(output), 4):
        emit(source, "a", [*PROMPT.tolist(), *output[:begin].tolist()], output[begin : begin + 4].tolist())
    held = len(output) - SHARED_TOKENS
    assert all(source.trie.count(output[end - 12 : end]) for end in range(12, held))
    source.stop("a")
    assert all(source.trie.count(output[end - 12 : end]) for end in range(12, len(output) + 1))
    check(source.trie)


def test_private_text_is_gone_when_the_request_ends_and_tenants_stay_apart():
    source = trie_source()
    source.start("a", PROMPT, "one")
    emit(source, "a", PROMPT.tolist(), [70, 71])
    source.stop("a")
    source.start("b", np.asarray([5], np.int32), "two")
    assert set(drafted(source, "b", [5, 70])) <= {5}
    source.start("c", np.asarray([5], np.int32), "one")
    assert 71 in drafted(source, "c", [5, 70], 2)
    assert source.trie.count(np.asarray([12], np.int32), "one") == 0


def test_a_request_that_continues_an_ended_one_drafts_as_if_it_were_one_request():
    """As the calls of one output to an engine do."""
    text = np.random.default_rng(0).integers(0, 6, 120).astype(np.int32)
    whole, parts = PromptSource(PromptDraftConfig()), PromptSource(PromptDraftConfig())
    whole.start("r", text[:20], "")
    parts.start("call 0", text[:20], "")
    for end in range(20, 119, 9):
        emit(whole, "r", text[:end].tolist(), text[end : end + 9].tolist())
        emit(parts, f"call {end - 20}", text[:end].tolist(), text[end : end + 9].tolist())
        parts.stop(f"call {end - 20}")
        parts.start(f"call {end - 11}", text[: end + 9], "")
        for budget in (DraftBudget(16, 6), DraftBudget(1, 1)):
            trees = [
                source.propose(name, text[: end + 9], budget)
                for source, name in ((whole, "r"), (parts, f"call {end - 11}"))
            ]
            assert trees[0].token_ids.tolist() == trees[1].token_ids.tolist()
            assert trees[0].probabilities.tolist() == trees[1].probabilities.tolist()
    assert len(parts._kept) == 0


def test_the_text_of_an_ended_request_is_continued_only_by_its_own_namespace_and_its_own_beginning():
    source = PromptSource(PromptDraftConfig())
    source.start("a", PROMPT, "one")
    emit(source, "a", PROMPT.tolist(), [60, 61])
    source.stop("a")
    longer = np.asarray([*PROMPT, 60, 61, 60], np.int32)
    source.start("of another", longer, "two")
    source.start("shorter", longer[:-2], "one")
    other = longer.copy()
    other[3] = 99
    source.start("differs", other, "one")
    assert len(source._kept) == 1
    source.start("continues", longer, "one")
    assert not source._kept
    assert drafted(source, "continues", longer.tolist(), 1) == [61]
    assert 12 not in drafted(source, "differs", [*other[:-1].tolist(), 11], 1)


def test_a_bounded_number_of_ended_texts_is_kept():
    source = PromptSource(PromptDraftConfig())
    for number in range(3 * MAX_KEPT):
        source.start(str(number), np.asarray([number, 1, 2], np.int32), "")
        source.stop(str(number))
    assert len(source._kept) == MAX_KEPT
    source.start("long", np.zeros(MAX_KEPT_TOKENS + 1, np.int32), "")
    source.stop("long")
    assert not source._kept


def test_requests_interleave_and_each_keeps_its_own_text():
    source = trie_source()
    for name in "abcdef":
        source.start(name, np.asarray([ord(name)], np.int32), "")
    for step in range(40):
        for name in "abcdef":
            emit(source, name, [ord(name)], [1000 * ord(name) + 2 * step, 1000 * ord(name) + 2 * step + 1])
    for name in "abcdef":
        assert drafted(source, name, [1000 * ord(name) + 20], 2) == [1000 * ord(name) + at for at in (21, 22)]
        source.stop(name)
        check(source.trie)
        assert source.trie.count(np.asarray([1000 * ord(name) + at for at in range(60, 72)], np.int32)) == 1


@pytest.mark.parametrize(("how", "fan"), [("single", 1), ("parallel", 2), ("hierarchical", 2)])
def test_the_retrieval_strategy_of_the_config_is_followed(how, fan):
    source = trie_source(retrieval=how)
    source.start("r", np.asarray([1, 2, 3, 8, 1, 2, 4, 9, 1, 2], np.int32), "")
    tree = source.propose("r", np.asarray([1, 2, 3, 8, 1, 2, 4, 9, 1, 2], np.int32), DraftBudget(4, 2))
    assert min(int((tree.parents == -1).sum()), 2) == fan


def test_a_limit_too_small_for_the_branch_length_is_a_config_error():
    with pytest.raises(ConfigError, match="needs at least"):
        TrieSource(TrieDraftConfig(branch_length=64, max_bytes=1 << 16))


def test_the_shared_trie_starts_with_a_snapshot(tmp_path: Path):
    past = Trie(12)
    past.insert(np.asarray([10, 11, 30, 31, 32], np.int32))
    save_trie(past, tmp_path / "past.trie")
    source = trie_source(snapshot=str(tmp_path / "past.trie"))
    source.start("r", np.asarray([5, 10, 11], np.int32), "")
    assert {30, 31, 32} <= set(drafted(source, "r", [5, 10, 11]))
    source.start("other tenant", np.asarray([5, 10, 11], np.int32), "tenant")
    assert not {30, 31, 32} & set(drafted(source, "other tenant", [5, 10, 11]))


def test_a_snapshot_that_does_not_fit_or_is_missing_is_reported(tmp_path: Path):
    path = tmp_path / "short.trie"
    save_trie(Trie(8), path)
    with pytest.raises(ConfigError, match=r"branch_length is 12, but 8 in the snapshot .*short\.trie\."):
        trie_source(snapshot=str(path))
    with pytest.raises(UserError, match=r"gone\.trie cannot be read: No such file"):
        trie_source(snapshot=str(tmp_path / "gone.trie"))


def test_nothing_is_drafted_without_a_budget():
    source = trie_source()
    source.start("r", PROMPT, "")
    assert len(source.propose("r", PROMPT, DraftBudget(0, 5))) == 0
    assert len(source.propose("r", PROMPT, DraftBudget(5, 0))) == 0


def test_an_empty_update_and_one_with_a_tree_are_taken():
    source = trie_source()
    source.start("r", PROMPT, "")
    emit(source, "r", PROMPT.tolist(), [])
    tree = chain([12, 13])
    source.update("r", StepResult(PROMPT, tree, [0], [12, 20]))
    source.stop("r")
    assert source.trie.count(np.asarray([12, 20], np.int32)) == 1


@pytest.mark.parametrize("source", [trie_source(), PromptSource(PromptDraftConfig())])
def test_one_token_repeated_for_long_then_others_are_learnt_and_taken_in(source):
    """Then many contexts give the repeated token a high probability, and all are wrong."""
    text = [4, 6, *[5] * 200, 7, 8, 9, 10]
    source.start("r", PROMPT, "")
    context = PROMPT.tolist()
    for token in text:
        emit(source, "r", context, [token])
        context.append(token)
    assert drafted(source, "r", [*context, 7], 1) == [8]
    assert drafted(source, "r", [*context, 7, 8, 9], 1) == [10]
    source.stop("r")
