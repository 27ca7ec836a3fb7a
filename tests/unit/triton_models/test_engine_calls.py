"""Tensors of an engine call become a submission, or an error with a sentence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipeline.decoding.log_probs import PromptLogits
from pipeline.decoding.request import FinishReason
from pipeline.decoding.session import GenerationStatistics
from pipeline.decoding.sources.base import DraftBudget
from pipeline.engine.submission import StepEvent
from pipeline.errors import RequestError
from pipeline.triton_models.engine_calls import engine_call, rows_of, sampling_of
from pipeline.triton_models.tensors import pack_word_list


def tensors(**more: object) -> dict[str, np.ndarray]:
    base = {"input_ids": [[5, 6, 7]], "input_lengths": [[3]], "request_output_len": [[8]]}
    return {name: np.asarray(value) for name, value in (base | more).items() if value is not None}


def event(*token_ids: int, reason: FinishReason | None = None, done: bool = False) -> StepEvent:
    statistics = GenerationStatistics(num_steps=3, num_draft_tokens=10, num_accepted_tokens=4)
    return StepEvent("r", list(token_ids), statistics, reason, done=done)


@pytest.mark.parametrize(
    ("sent", "greedy"),
    [
        ({}, True),
        ({"top_k": 1, "top_p": 0.9, "temperature": 0.7}, True),
        ({"temperature": 0.0, "top_p": 0.9}, True),
        ({"top_k": 0, "top_p": 0.0, "temperature": 0.7}, True),
        ({"temperature": 0.7}, False),
        ({"top_k": 5}, False),
        ({"top_p": 0.5}, False),
    ],
)
def test_greedy_follows_from_what_was_sent_as_in_tensorrt_llm(sent, greedy):
    tensors = {name: np.asarray([[value]]) for name, value in sent.items()}
    params = sampling_of(tensors, bad_words=(), embedding_bias=None)

    assert params.greedy is greedy
    if not greedy:
        assert params.temperature == sent.get("temperature", 1.0)
        assert params.top_p == sent.get("top_p", 1.0)
        assert params.top_k == sent.get("top_k", 0)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"runtime_top_k": [[-1]]}, "top_k is -1"),
        ({"runtime_top_p": [[1.5]]}, "top_p is 1.5"),
        ({"runtime_min_p": [[-1.0]]}, "min_p is -1"),
        ({"temperature": [[-0.5]]}, "temperature is -0.5"),
        ({"temperature": [[np.inf]]}, "temperature is inf; it must be a finite number"),
        ({"temperature": [[1e39]]}, "temperature is 1e"),
        ({"repetition_penalty": [[np.nan]]}, "repetition_penalty is nan"),
        ({"bad_words_list": [[[1, 2], [0, 2]]]}, "bad_words_list ends a word at 0"),
        ({"bad_words_list": [5]}, r"bad_words_list has shape \[1\]"),
        ({"bad_words_list": [[5, 6]]}, r"bad_words_list has shape \[1, 2\]"),
        ({"beam_width": [[4]]}, "beam_width is 4"),
        ({"lora_task_id": [[3]]}, "lora_task_id is not supported"),
        ({"num_top_logprobs": [[1]]}, "without return_log_probs"),
        ({"guided_decoding_guide": [[b"a"]]}, "without guided_decoding_guide_type"),
        ({"draft_input_ids": np.zeros((1, 0), np.int32)}, "draft_input_ids is empty"),
        ({"draft_parents": [[-1]]}, "without draft_input_ids"),
        ({"draft_input_ids": [[1, 2]], "draft_parents": [[-1, 1]]}, "draft node 1 has parent 1"),
        ({"draft_input_ids": [[1, 2]], "draft_probabilities": [[0.5]]}, "must be 2 numbers"),
        ({"draft_input_ids": [[1]], "draft_probabilities": [[1.5]]}, "in 0 .. 1"),
        ({"input_lengths": [[4]]}, "input_lengths is 4"),
        ({"lookahead_window_size": [[4]]}, "belong together"),
        (
            {
                "lookahead_window_size": [[4]],
                "lookahead_ngram_size": [[1]],
                "lookahead_verification_set_size": [[4]],
            },
            "are not possible",
        ),
        ({"input_ids": np.zeros((2, 3), np.int32)}, "batch of 2"),
        ({"max_steps": [[0]]}, "max_steps is 0"),
    ],
)
def test_what_cannot_be_obeyed_is_refused_with_a_sentence(wrong, sentence):
    with pytest.raises(RequestError, match=sentence):
        engine_call(tensors(**wrong), "r")


def test_neutral_values_of_unsupported_tensors_are_accepted():
    call = engine_call(
        tensors(
            beam_width=[[1]], return_log_probs=[[False]], embedding_bias=np.zeros((1, 9)), num_return_sequences=[[1]]
        ),
        "r",
    )

    assert call.submission.request.sampling.greedy
    assert call.submission.request.sampling.embedding_bias is None


def test_a_request_with_drafts_ends_after_one_step_and_brings_a_chain_or_a_tree():
    chain = engine_call(tensors(draft_input_ids=[[1, 2, 3]]), "r").submission
    tree = engine_call(tensors(draft_input_ids=[[1, 2, 3]], draft_parents=[[-1, -1, 0]]), "r").submission

    assert chain.max_steps == tree.max_steps == 1
    assert chain.strategy == tree.strategy == "trie"
    assert chain.supplied.parents.tolist() == [-1, 0, 1]
    assert chain.budget == DraftBudget(3, 3)
    assert tree.budget == DraftBudget(3, 2)


def test_the_number_of_steps_can_be_set_with_and_without_drafts():
    many = engine_call(tensors(draft_input_ids=[[1, 2]], max_steps=[[4]]), "r").submission
    few = engine_call(tensors(max_steps=[[2]]), "r", "hybrid", DraftBudget(9, 4)).submission

    assert (many.max_steps, few.max_steps) == (4, 2)


def test_other_sources_draft_beside_a_tree_only_with_a_strategy():
    budget = DraftBudget(9, 4)
    alone = engine_call(tensors(draft_input_ids=[[1, 2]]), "r", "hybrid", budget).submission
    named = {"draft_input_ids": [[1, 2]], "draft_strategy": np.asarray([[b"trie"]], np.object_)}
    together = engine_call(tensors(**named), "r", "hybrid", budget).submission

    assert (alone.only_supplied, alone.budget) == (True, DraftBudget(2, 2))
    assert (together.only_supplied, together.budget) == (False, budget)


def test_a_request_without_drafts_decodes_on_with_the_profiles_strategy():
    submission = engine_call(tensors(), "r", "hybrid", DraftBudget(9, 4)).submission

    assert (submission.max_steps, submission.strategy, submission.budget) == (None, "hybrid", DraftBudget(9, 4))
    limited = engine_call(tensors(max_draft_tokens=[[2]]), "r", "hybrid", DraftBudget(9, 4)).submission
    assert limited.budget == DraftBudget(2, 4)


def test_request_fields_arrive():
    request = engine_call(
        tensors(
            input_ids=[[5, 6, 7, 0]],
            end_id=[[2]],
            min_tokens=[[1]],
            stop_words_list=pack_word_list([[3, 4], [9]])[None],
            bad_words_list=pack_word_list([[8]])[None],
            seed=np.asarray([[2**63 + 1]], np.uint64),
            temperature=[[0.5]],
        ),
        "name",
    ).submission.request

    assert request.request_id == "name"
    assert request.prompt_ids.tolist() == [5, 6, 7]
    assert (request.max_new_tokens, request.min_new_tokens) == (8, 1)
    assert request.end_ids == {2}
    assert request.stop_sequences == ((3, 4), (9,))
    assert request.sampling.bad_words == ((8,),)
    assert request.sampling.seed == 2**63 + 1


def test_an_end_id_of_minus_one_means_none():
    assert engine_call(tensors(end_id=[[-1]]), "r").submission.request.end_ids == frozenset()


def test_without_streaming_one_response_holds_prompt_and_output_without_the_end_token():
    call = engine_call(tensors(end_id=[[2]], return_perf_metrics=[[True]], return_num_output_tokens=[[True]]), "r")

    assert call.response(event(10, 11)) is None
    answer = call.response(event(12, 2, reason=FinishReason.END_TOKEN, done=True))

    assert answer is not None
    assert answer["output_ids"].tolist() == [[[5, 6, 7, 10, 11, 12]]]
    assert answer["sequence_length"].tolist() == [[6]]
    assert answer["finish_reason"].tolist() == [[b"end_token"]]
    assert answer["total_draft_tokens"].tolist() == [[10]]
    assert answer["acceptance_rate"].tolist() == [[pytest.approx(0.4)]]
    assert answer["num_output_tokens"].tolist() == [[3]]


def test_the_prompt_is_left_out_if_asked_for():
    call = engine_call(tensors(exclude_input_in_output=[[True]]), "r")

    answer = call.response(event(10, done=True))

    assert answer is not None
    assert answer["output_ids"].tolist() == [[[10]]]
    assert answer["finish_reason"].tolist() == [[b"step"]]


def test_the_end_token_of_a_grammar_is_left_out_too():
    call = engine_call(tensors(exclude_input_in_output=[[True]]), "r")

    answer = call.response(event(10, 2, reason=FinishReason.END_TOKEN, done=True))

    assert answer is not None
    assert answer["output_ids"].tolist() == [[[10]]]


def test_a_prompt_of_one_token_and_an_output_of_none_have_no_alternatives():
    wanted = {name: [[True]] for name in ("return_log_probs", "return_prompt_log_probs", "exclude_input_in_output")}
    call = engine_call(tensors(input_ids=[[5]], input_lengths=None, num_top_logprobs=[[3]], **wanted), "r")
    end = replace(event(2, reason=FinishReason.END_TOKEN, done=True), prompt=PromptLogits([], []))

    answer = call.response(end)

    assert answer is not None
    for name in ("top_logprob_ids", "top_logprobs", "prompt_top_logprob_ids", "prompt_top_logprobs"):
        assert answer[name].shape == (1, 0, 3)


def test_streaming_gives_the_new_tokens_of_each_step():
    call = engine_call(tensors(streaming=[[True]], end_id=[[2]]), "r")

    first, last = call.response(event(10, 11)), call.response(event(2, reason=FinishReason.END_TOKEN, done=True))

    assert first is not None
    assert last is not None
    assert first["output_ids"].tolist() == [[[10, 11]]]
    assert "finish_reason" not in first
    assert last["output_ids"].shape == (1, 1, 0)
    assert last["sequence_length"].tolist() == [[0]]


def test_a_request_of_several_rows_is_several_requests():
    asked = tensors(
        input_ids=[[5, 6, 7], [8, 9, 0]], input_lengths=[[3], [2]], request_output_len=[[8], [4]], end_id=[[2], [3]]
    )
    first, second = (engine_call(row, "r").submission.request for row in rows_of(asked))

    assert (first.prompt_ids.tolist(), first.max_new_tokens, first.end_ids) == ([5, 6, 7], 8, {2})
    assert (second.prompt_ids.tolist(), second.max_new_tokens, second.end_ids) == ([8, 9], 4, {3})


def test_tensors_that_differ_in_their_rows_are_refused():
    with pytest.raises(RequestError, match="input_lengths has 1 rows, other tensors have 2"):
        rows_of(tensors(input_ids=np.zeros((2, 3), np.int32)))


def test_blocks_found_in_the_cache_are_not_new_ones():
    asked = tensors(input_ids=[[5] * 100], input_lengths=[[100]], return_perf_metrics=[[True]])
    statistics = GenerationStatistics(num_steps=1, num_reused_tokens=70)
    answer = engine_call(asked, "r").response(StepEvent("r", [10], statistics, FinishReason.LENGTH, done=True))

    assert answer is not None
    names = ("kv_cache_alloc_total_blocks", "kv_cache_reused_blocks", "kv_cache_alloc_new_blocks")
    assert [answer[name].item() for name in names] == [4, 2, 2]


def test_performance_figures_are_all_there():
    call = engine_call(tensors(return_perf_metrics=[[True]]), "r")
    answer = call.response(event(10, 11, reason=FinishReason.LENGTH, done=True))

    assert answer is not None
    assert answer["kv_cache_alloc_total_blocks"].tolist() == [[1]]
    assert answer["num_steps"].tolist() == [[3]]
    assert answer["arrival_time_ns"].dtype == np.int64
    assert answer["arrival_time_ns"] <= answer["first_scheduled_time_ns"] <= answer["last_token_time_ns"]
