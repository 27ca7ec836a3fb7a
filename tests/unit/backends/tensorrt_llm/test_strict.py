"""Accepted, cut and refused requests of the emulated TensorRT-LLM: sections 2.5, 3 and 4 of the contract."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.backends.tensorrt_llm.strict import (
    StrictEngine,
    require_outputs,
    strict_call,
    strict_engine,
    strict_profile,
)
from pipeline.config.schema import LookaheadConfig
from pipeline.decoding.request import FinishReason
from pipeline.decoding.session import GenerationStatistics
from pipeline.engine.submission import StepEvent
from pipeline.engine.traits import RuntimeLimits
from pipeline.errors import RepositoryError, RequestError
from pipeline.triton_models.tensors import pack_word_list
from tests.unit.triton_models.fakes import small_config

VOCAB = 24
TRIE = StrictEngine("trie", RuntimeLimits(64, 48, 6, chunked_context=False), None, VOCAB)
LOOKAHEAD = StrictEngine(
    "lookahead", RuntimeLimits(64, 48, 15, chunked_context=False), LookaheadConfig.of(5, 3, 3), VOCAB
)
NONE = StrictEngine("none", RuntimeLimits(64, 48, 0, chunked_context=False), None, VOCAB)


def tensors(num_prompt: int = 3, **more: object) -> dict[str, np.ndarray]:
    base = {
        "input_ids": [list(range(num_prompt))] if num_prompt <= VOCAB else np.ones((1, num_prompt), np.int32),
        "input_lengths": [[num_prompt]],
        "request_output_len": [[8]],
    }
    return {name: np.asarray(value) for name, value in (base | more).items() if value is not None}


def sizes(window: int, ngram: int, candidates: int) -> dict[str, object]:
    names = ("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size")
    return {name: [[value]] for name, value in zip(names, (window, ngram, candidates), strict=True)}


REFUSED = [
    (TRIE, {"draft_input_ids": np.zeros((1, 7), np.int32)}, r"holds 7 tokens; the engine verifies at most 6"),
    (TRIE, {"draft_input_ids": np.zeros((1, 0), np.int32)}, "draft_input_ids is empty"),
    (TRIE, {"draft_input_ids": [[1]], "streaming": [[True]]}, "streaming is true beside draft_input_ids"),
    (TRIE, {"draft_input_ids": [[1, 2]], "draft_parents": [[-1, -1]]}, "draft_parents is not an input"),
    (TRIE, {"draft_probabilities": [[0.5]]}, "draft_probabilities is not an input"),
    (TRIE, {"draft_strategy": np.asarray([[b"trie"]], np.object_)}, "draft_strategy is not an input"),
    (TRIE, {"max_draft_tokens": [[2]]}, "max_draft_tokens is not an input"),
    (TRIE, {"runtime_min_p": [[0.1]]}, "runtime_min_p is not an input"),
    (TRIE, sizes(5, 3, 3), "the engine has no lookahead parameters"),
    (NONE, {"draft_input_ids": [[1]]}, "no speculative decoding"),
    (LOOKAHEAD, {"draft_input_ids": [[1]]}, "drafts for itself"),
    (LOOKAHEAD, sizes(5, 3, 4), r"\(5, 3, 4\); the instance runs \(5, 3, 3\)"),
    (LOOKAHEAD, sizes(5, 3, 3) | {"lookahead_ngram_size": None}, "belong together"),
    (LOOKAHEAD, sizes(2, 1, 0), "are not possible"),
    (LOOKAHEAD, {"num_prompt": 1}, "n-grams of 3 need at least 2"),
    (TRIE, {"num_prompt": 49}, "49 tokens; the engine takes at most 48"),
    (TRIE, {"end_id": [[VOCAB]]}, f"end_id is {VOCAB}"),
    (TRIE, {"end_id": [[-2]]}, "end_id is -2"),
    (TRIE, {"beam_width": [[2]]}, "beam_width is 2"),
    (TRIE, {"runtime_top_k": [[-1]]}, "top_k is -1"),
    (TRIE, {"input_ids": np.ones((2, 3), np.int32)}, "batch of 2"),
]


@pytest.mark.parametrize(("engine", "wrong", "sentence"), REFUSED, ids=[sentence for _, _, sentence in REFUSED])
def test_what_the_contract_refuses_gets_a_sentence(engine, wrong, sentence):
    with pytest.raises(RequestError, match=sentence):
        strict_call(tensors(**wrong), "r", engine)


@pytest.mark.parametrize("num_drafts", range(1, 7))
def test_a_chain_up_to_the_limit_is_one_step(num_drafts):
    drafts = list(range(num_drafts))
    submission = strict_call(tensors(draft_input_ids=[drafts]), "r", TRIE).submission

    assert submission.max_steps == 1
    assert submission.supplied.token_ids.tolist() == drafts
    assert submission.supplied.parents.tolist() == list(range(-1, num_drafts - 1))


@pytest.mark.parametrize(("num_prompt", "kept"), [(42, 6), (43, 5), (47, 1), (48, 0)])
def test_drafts_beyond_the_longest_prompt_are_cut_and_without_any_it_decodes_on(num_prompt, kept):
    submission = strict_call(
        tensors(num_prompt, draft_input_ids=np.ones((1, 6)), request_output_len=[[7]]), "r", TRIE
    ).submission

    assert len(submission.supplied) == kept
    assert submission.max_steps == (1 if kept else None)
    assert submission.request.max_new_tokens == 7


@pytest.mark.parametrize(
    ("engine", "num_prompt", "num_drafts", "room"),
    [(TRIE, 40, 0, 64 - 40 - 6), (TRIE, 40, 2, 64 - 40 - 2), (LOOKAHEAD, 40, 0, 64 - 40 - 15), (NONE, 40, 0, 24)],
)
def test_output_is_cut_to_what_fits_beside_the_drafts_reserve(engine, num_prompt, num_drafts, room):
    drafts = np.ones((1, num_drafts), np.int32) if num_drafts else None
    asked = tensors(num_prompt, request_output_len=[[99]], min_tokens=[[50]], draft_input_ids=drafts)
    request = strict_call(asked, "r", engine).submission.request

    assert (request.max_new_tokens, request.min_new_tokens) == (room, room)


def test_a_prompt_that_leaves_no_room_is_refused():
    engine = StrictEngine("trie", RuntimeLimits(64, 999, 6, chunked_context=True), None, VOCAB)
    assert strict_call(tensors(57), "r", engine).submission.request.max_new_tokens == 1
    with pytest.raises(RequestError, match="58 tokens leaves no room for output: the engine holds 64 and keeps 6"):
        strict_call(tensors(58), "r", engine)


@pytest.mark.parametrize(
    ("sent", "greedy"),
    [
        ({}, True),
        ({"temperature": [[0.7]]}, True),  # neither top-k nor top-p: greedy whatever the temperature
        ({"runtime_top_k": [[0]], "runtime_top_p": [[0.0]], "temperature": [[0.7]]}, True),
        ({"runtime_top_k": [[1]], "temperature": [[0.7]]}, True),
        ({"runtime_top_k": [[5]]}, False),
        ({"runtime_top_p": [[0.5]]}, False),
        ({"runtime_top_k": [[0]], "runtime_top_p": [[1.0]]}, False),
    ],
)
def test_sampling_options_that_are_missing_mean_tensorrt_llms_defaults(sent, greedy):
    sampling = strict_call(tensors(**sent), "r", TRIE).submission.request.sampling

    assert sampling.greedy is greedy
    assert greedy or sampling.temperature == 1.0


def test_penalties_hold_on_an_engine_for_external_drafts_and_nothing_holds_on_one_for_lookahead():
    sent = {
        "repetition_penalty": [[1.5]],
        "runtime_top_k": [[4]],
        "bad_words_list": pack_word_list([[8]])[None],
        "min_tokens": [[3]],
    }

    trie = strict_call(tensors(**sent), "r", TRIE).submission.request
    lookahead = strict_call(tensors(**sent), "r", LOOKAHEAD).submission.request

    assert (trie.sampling.repetition_penalty, trie.sampling.top_k, trie.sampling.bad_words) == (1.5, 4, ((8,),))
    assert lookahead.sampling.greedy
    assert lookahead.sampling.repetition_penalty == 1.0
    assert not lookahead.sampling.bad_words
    assert lookahead.min_new_tokens == 3


def test_w_n_g_are_the_instances_unless_a_request_asks_for_less():
    whole = strict_call(tensors(), "r", LOOKAHEAD).submission
    less = strict_call(tensors(**sizes(2, 2, 1)), "r", LOOKAHEAD).submission
    off = strict_call(tensors(num_prompt=1, **sizes(1, 1, 0)), "r", LOOKAHEAD).submission

    assert (whole.strategy, less.strategy, off.strategy) == ("lookahead", "lookahead", "none")
    assert whole.lookahead is not None
    assert less.lookahead is not None
    assert whole.lookahead.max_draft_len == 15
    assert less.lookahead.max_draft_len == 2


def test_answers_hold_tensorrt_llms_outputs_and_no_others():
    call = strict_call(
        tensors(end_id=[[2]], return_perf_metrics=[[True]], return_num_output_tokens=[[True]]), "r", TRIE
    )
    statistics = GenerationStatistics(num_steps=3, num_draft_tokens=10, num_accepted_tokens=4, num_reused_tokens=64)

    answer = call.response(StepEvent("r", [10, 2], statistics, FinishReason.END_TOKEN, done=True))

    assert answer is not None
    assert answer["output_ids"].tolist() == [[[0, 1, 2, 10]]]  # the end token is neither returned nor counted
    assert answer["sequence_length"].tolist() == [[4]]
    assert answer["num_output_tokens"].tolist() == [[4]]
    assert answer["total_draft_tokens"].tolist() == [[10]]
    assert answer["kv_cache_reused_blocks"].tolist() == [[2]]
    assert not {"finish_reason", "num_steps", "batch_index", "sequence_index"} & answer.keys()
    times = [
        answer[name].item()
        for name in ("arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns")
    ]
    assert times == sorted(times)


def test_streamed_answers_carry_the_metrics_so_far_and_rows_their_number():
    call = strict_call(tensors(streaming=[[True]], return_perf_metrics=[[True]]), "r", TRIE)
    call.row, call.num_rows = 1, 2

    first = call.response(StepEvent("r", [10], GenerationStatistics(num_steps=1)))
    last = call.response(StepEvent("r", [], GenerationStatistics(num_steps=1), FinishReason.END_TOKEN, done=True))

    assert first is not None
    assert last is not None
    assert first["total_draft_tokens"].tolist() == [[0]]
    assert first["batch_index"].tolist() == last["batch_index"].tolist() == [[1]]
    assert last["output_ids"].shape == (1, 1, 0)
    assert last["sequence_length"].tolist() == [[0]]


def test_a_request_must_name_both_outputs_that_the_backend_cannot_do_without():
    require_outputs({"output_ids", "sequence_length", "cum_log_probs"})
    with pytest.raises(RequestError, match="must ask for the output sequence_length"):
        require_outputs({"output_ids"})


def test_the_engine_played_is_the_configs():
    resolved = small_config(
        "tensorrt_llm.speculation=trie", "tensorrt_llm.max_external_draft_len=6", "engine.max_num_tokens=100",
        "engine.prefill_chunk=64",
    )  # fmt: skip
    engine = strict_engine(resolved, "trie", VOCAB)

    assert engine.limits == RuntimeLimits(256, 100, 6, chunked_context=False)
    assert engine.limits.longest_prompt == 100
    assert engine.lookahead is None
    assert strict_engine(resolved, "lookahead", VOCAB).lookahead == resolved.lookahead


def test_an_engine_with_more_drafts_than_the_torch_engine_takes_is_refused():
    resolved = small_config("engine.max_draft_tokens=16", "tensorrt_llm.max_external_draft_len=17")
    with pytest.raises(RepositoryError, match="with 17 draft tokens"):
        strict_engine(resolved, "trie", VOCAB)


def test_the_torch_engine_drafts_nothing_of_its_own_but_the_window():
    profile = strict_profile(small_config("drafting.planner=adaptive")).profile

    assert profile.drafting.planner == "fixed"
    assert [source.kind for source in profile.drafting.sources] == ["supplied", "window"]
