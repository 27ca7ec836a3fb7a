"""Requests in the very shape in which TensorRT-LLM's own Triton clients send them, read as those clients read them.

The server runs with its default settings. Answers are never reshaped: texts are `output[0].decode()`, ids and counts
are `output[0][0]`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc
from tritonclient.utils import InferenceServerException

from tests.integration.stock_clients import NUM_TOKENS, ONCE, PROMPT, one, preprocessed, words

pytestmark = [pytest.mark.triton, pytest.mark.slow]


def test_models_called_one_by_one_say_what_the_ensemble_and_the_bls_model_say(stock):
    """end_to_end_test.py: preprocessing, tensorrt_llm, postprocessing, then the ensemble, then the BLS model."""
    result = stock.infer("tensorrt_llm", preprocessed(stock))
    output_ids, lengths = result.as_numpy("output_ids").astype(np.int32), result.as_numpy("sequence_length")
    assert output_ids.ndim == 3
    assert lengths.shape == (1, 1)
    by_hand = stock.infer("postprocessing", {"TOKENS_BATCH": output_ids, "SEQUENCE_LENGTH": lengths}).as_numpy("OUTPUT")

    asked = {
        "text_input": words(PROMPT),
        "max_tokens": one(NUM_TOKENS),
        "bad_words": words(""),
        "stop_words": words(""),
    }
    ensemble = stock.infer("ensemble", asked, ["text_output"]).as_numpy("text_output")
    bls = stock.infer("tensorrt_llm_bls", asked, ["text_output"]).as_numpy("text_output")
    output = stock.infer("tensorrt_llm_bls", asked | {"exclude_input_in_output": one(True, np.bool_)})

    assert by_hand.shape == ensemble.shape == bls.shape == (1,)
    text = by_hand[0].decode()
    assert text == ensemble[0].decode() == bls[0].decode()
    assert text == PROMPT + output.as_numpy("text_output")[0].decode()
    assert output.as_numpy("batch_index")[0][0] == 0


def test_the_core_models_benchmark_reads_the_output_length_from_the_first_output(stock):
    """benchmark_core_model.py: many requests at once, some of ids far outside any vocabulary."""
    asked = preprocessed(stock)
    asked = {
        "input_ids": asked["input_ids"],
        "input_lengths": asked["input_lengths"],
        "request_output_len": one(NUM_TOKENS),
        "pad_id": one(0),
        "end_id": one(-1),
    }

    def work(number: int) -> Any:
        return stock.infer("tensorrt_llm", asked).get_response()

    if stock.library is grpc:
        with ThreadPoolExecutor(4) as pool:
            responses = list(pool.map(work, range(8)))
        shapes = {tuple(response.outputs[0].shape) for response in responses}
        assert {response.outputs[0].name for response in responses} == {"output_ids"}
    else:
        response = work(0)
        shapes = {tuple(response["outputs"][0]["shape"])}
        assert response["outputs"][0]["name"] == "output_ids"
    assert shapes == {(1, 1, asked["input_ids"].shape[1] + NUM_TOKENS)}

    far = asked | {"input_ids": np.asarray([[5, 2**31 - 1]], np.int32), "input_lengths": one(2)}
    with pytest.raises(InferenceServerException, match="outside the vocabulary"):
        stock.infer("tensorrt_llm", far)
    assert stock.infer("tensorrt_llm", asked).as_numpy("output_ids") is not None


@pytest.mark.parametrize("num_draft_tokens", [1, 4, 7])
def test_a_client_that_drafts_with_one_call_and_verifies_with_the_next_gets_the_ensembles_text(stock, num_draft_tokens):
    """speculative_decoding_test.py, whose draft and target model are one here."""
    asked = {
        "text_input": words(PROMPT),
        "max_tokens": one(NUM_TOKENS),
        "stream": one(False, np.bool_),
        "beam_width": one(1),
        "temperature": one(1.0, np.float32),
        "embedding_bias_words": np.asarray([[]], np.object_),
        "embedding_bias_weights": np.asarray([[]], np.float32),
        "exclude_input_in_output": one(False, np.bool_),
    }
    control = stock.infer("ensemble", asked, ["text_output"]).as_numpy("text_output")
    start = preprocessed(stock)
    ids = start["input_ids"][0]
    end = len(ids) + NUM_TOKENS

    def generate(num_tokens: int, drafts: np.ndarray | None = None) -> np.ndarray:
        tensors = {
            "input_ids": ids[None],
            "input_lengths": one(len(ids)),
            "request_output_len": one(num_tokens),
            "bad_words_list": np.asarray([[[0], [-1]]], np.int32),
            "stop_words_list": np.asarray([[[0], [-1]]], np.int32),
            "beam_width": one(1),
            "temperature": one(1.0, np.float32),
            "end_id": start["end_id"],
            "pad_id": start["pad_id"],
        }
        if drafts is not None:
            tensors["draft_input_ids"] = np.asarray([drafts], np.int32)
        result = stock.infer("tensorrt_llm", tensors)
        output = np.squeeze(result.as_numpy("output_ids").astype(np.int32), axis=(0, 1))
        assert result.as_numpy("sequence_length").tolist() == [[len(output)]]
        return output

    rounds = []
    while len(ids) < end:
        num_drafts = min(num_draft_tokens, end - len(ids) - 1)
        drafts = generate(num_drafts)[len(ids) :] if num_drafts > 0 else None
        new = generate(1 if drafts is None else len(drafts) + 1, drafts)
        assert new[: len(ids)].tolist() == ids.tolist()
        rounds.append((0 if drafts is None else len(drafts), len(new) - len(ids)))
        ids = new

    text = stock.infer("postprocessing", {"TOKENS_BATCH": ids[None, None], "SEQUENCE_LENGTH": one(len(ids))})
    assert text.as_numpy("OUTPUT")[0].decode() == control[0].decode()
    bls = {"num_draft_tokens": one(num_draft_tokens), "use_draft_logits": one(False, np.bool_)}
    assert stock.infer("tensorrt_llm_bls", asked | bls, ["text_output"]).as_numpy("text_output") == control
    # Each draft is what the same model says, so it is accepted, and a token of the model's own follows.
    assert [num_new for _, num_new in rounds] == [num_drafts + 1 for num_drafts, _ in rounds]
    assert len(rounds) == -(-NUM_TOKENS // (num_draft_tokens + 1))


def test_the_token_clients_defaults_and_its_performance_figures(stock):
    """inflight_batcher_llm_client.py with --return-perf-metrics and token counts."""
    asked = preprocessed(stock)
    names = (
        "kv_cache_alloc_new_blocks",
        "kv_cache_reused_blocks",
        "kv_cache_alloc_total_blocks",
        "arrival_time_ns",
        "first_scheduled_time_ns",
        "first_token_time_ns",
        "last_token_time_ns",
        "acceptance_rate",
        "total_accepted_draft_tokens",
        "total_draft_tokens",
    )
    flags = ("return_perf_metrics", "return_num_input_tokens", "return_num_output_tokens")
    result = stock.infer(
        "tensorrt_llm",
        {
            "input_ids": asked["input_ids"],
            "input_lengths": asked["input_lengths"],
            "request_output_len": one(16),
            "beam_width": one(1),
            "temperature": one(1.0, np.float32),
            "streaming": one(False, np.bool_),
            "end_id": asked["end_id"],
            "pad_id": asked["pad_id"],
            "runtime_top_k": one(1),
            "runtime_top_p": one(0.0, np.float32),
            **{flag: one(True, np.bool_) for flag in flags},
        },
    )

    assert all(result.as_numpy(name)[0][0] >= 0 for name in names)
    assert result.as_numpy("num_input_tokens")[0][0] == asked["input_ids"].shape[1]
    assert result.as_numpy("num_output_tokens")[0][0] == 16
    assert result.as_numpy("output_ids").shape == (1, 1, asked["input_ids"].shape[1] + 16)


def test_every_response_of_a_stream_has_the_outputs_that_the_token_client_requests(stock):
    """inflight_batcher_llm_client.py -S --return-perf-metrics --requested-outputs: it refuses a response that lacks an
    output, and prints the figures of the last one."""
    if stock.library is not grpc:
        return  # only its gRPC client streams
    asked = preprocessed(stock)
    flags = ("streaming", "return_perf_metrics", "return_num_input_tokens", "return_num_output_tokens")
    names = {"output_ids", "sequence_length", "acceptance_rate", "last_token_time_ns", "total_draft_tokens"}
    names |= {"num_input_tokens", "num_output_tokens"}
    tensors = {
        "input_ids": asked["input_ids"],
        "input_lengths": asked["input_lengths"],
        "request_output_len": one(16),
        "end_id": one(-1),
        **{flag: one(True, np.bool_) for flag in flags},
    }
    answers: list[Any] = []
    stock.client.start_stream(lambda result, error: answers.append(error or result))
    wanted = [grpc.InferRequestedOutput(name) for name in sorted(names)]
    stock.client.async_stream_infer("tensorrt_llm_engine", stock.inputs(tensors), outputs=wanted, request_id="1")
    stock.client.stop_stream()

    assert len(answers) > 1  # how many depends on the drafts of earlier requests
    for answer in answers:
        assert {output.name for output in answer.get_response().outputs} == names
    assert sum(answer.as_numpy("sequence_length")[0][0] for answer in answers) == 16
    times = [answer.as_numpy("last_token_time_ns")[0][0] for answer in answers]
    assert times == sorted(times)
    assert answers[-1].as_numpy("num_output_tokens")[0][0] == 16


def test_w_n_g_are_taken_all_three(stock):
    asked = preprocessed(stock)
    sizes = {"lookahead_window_size": one(3), "lookahead_ngram_size": one(3), "lookahead_verification_set_size": one(3)}

    with_sizes = stock.infer("tensorrt_llm", asked | sizes).as_numpy("output_ids")

    assert with_sizes.tolist() == stock.infer("tensorrt_llm", asked).as_numpy("output_ids").tolist()
    with pytest.raises(InferenceServerException, match="belong together"):
        stock.infer("tensorrt_llm", asked | {"lookahead_window_size": one(3)})


def test_a_stream_that_is_asked_of_a_model_that_answers_once_is_one_piece(stock):
    asked = preprocessed(stock)
    whole = stock.infer("tensorrt_llm", asked).as_numpy("output_ids")[0][0].tolist()
    piece = stock.infer("tensorrt_llm", asked | {"streaming": one(True, np.bool_)}).as_numpy("output_ids")[0][0]
    assert whole == [*asked["input_ids"][0].tolist(), *piece.tolist()]
    text = {"text_input": words(PROMPT), "max_tokens": one(4)}
    for model in ONCE:
        whole = stock.infer(model, text).as_numpy("text_output")[0].decode()
        piece = stock.infer(model, text | {"stream": one(True, np.bool_)}).as_numpy("text_output")[0].decode()
        assert whole == PROMPT + piece


def test_what_needs_several_responses_is_refused_and_the_next_request_works(stock):
    asked = preprocessed(stock)
    with pytest.raises(InferenceServerException, match="holds a batch of 2 requests"):
        stock.infer("tensorrt_llm", {name: np.concatenate([value, value]) for name, value in asked.items()})
    with pytest.raises(InferenceServerException, match="decoupled"):
        stock.infer("lookahead_bls", {"text_input": words(PROMPT), "max_tokens": one(4)})
    assert stock.infer("tensorrt_llm", asked).as_numpy("output_ids") is not None


@pytest.mark.parametrize("model", ONCE)
def test_a_missing_input_is_named(stock, model):
    with pytest.raises(InferenceServerException, match="max_tokens is missing"):
        stock.infer(model, {"text_input": words(PROMPT)})
    with pytest.raises(InferenceServerException, match="text_input is empty"):
        stock.infer(model, {"max_tokens": one(4)})


def test_a_stop_request_is_answered_with_nothing(stock):
    stop = {"input_ids": one(0), "input_lengths": one(0), "request_output_len": one(0), "stop": one(True, np.bool_)}
    assert stock.infer("tensorrt_llm", stop).as_numpy("output_ids") is None
