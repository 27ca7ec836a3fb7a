"""Requests in the very shape in which TensorRT-LLM's own Triton clients send them, and what they read of the answers.

Those clients call `infer` over HTTP or gRPC, which Triton refuses for decoupled models, so the server runs with
scheduling.decoupled off; what they stream is in test_strict. The torch engine serves with its own tensors beside
theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc
import tritonclient.http as http
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from pipeline.config.places import Places
from pipeline.errors import RequestError
from pipeline.server.client import TextQuery, complete
from pipeline.server.server import RunningServer
from tests.integration.servers import prepared, running

pytestmark = [pytest.mark.triton, pytest.mark.slow]

OVERRIDES = (
    "engine.max_seq_len=512",
    "drafting.planner=fixed",  # no time is spent on measuring the engine
    "scheduling.decoupled=false",
    "scheduling.stock_bls=true",
)
PROMPT = "the rat at the tea; the rat at the tea; the rat"
NUM_TOKENS = 24


@pytest.fixture(scope="module")
def server(where: Places, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running(prepared(where, *OVERRIDES), where, tmp_path_factory.mktemp("run")) as server:
        yield server


class Stock:
    """One of the two client libraries, used as NVIDIA's scripts use it."""

    def __init__(self, library: Any, url: str) -> None:
        self.library = library
        self.client = library.InferenceServerClient(url)

    def inputs(self, tensors: dict[str, np.ndarray]) -> list[Any]:
        inputs = []
        for name, array in tensors.items():
            tensor = self.library.InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
            tensor.set_data_from_numpy(array)
            inputs.append(tensor)
        return inputs

    def infer(self, model: str, tensors: dict[str, np.ndarray], outputs: list[str] | None = None) -> Any:
        wanted = None if outputs is None else [self.library.InferRequestedOutput(name) for name in outputs]
        return self.client.infer(model, self.inputs(tensors), outputs=wanted, request_id="1")


@pytest.fixture(params=["grpc", "http"])
def stock(request: pytest.FixtureRequest, server: RunningServer) -> Iterator[Stock]:
    if request.param == "grpc":
        stock = Stock(grpc, server.state.grpc_url)
    else:
        stock = Stock(http, server.state.http_url.removeprefix("http://"))
    yield stock
    stock.client.close()


def words(*texts: str) -> np.ndarray:
    return np.asarray([list(texts)], np.object_)


def one(value: object, dtype: type = np.int32) -> np.ndarray:
    return np.asarray([[value]], dtype)


def preprocessed(stock: Stock, text: str = PROMPT) -> dict[str, np.ndarray]:
    """The first call of end_to_end_test.py, as the tensors of its second."""
    result = stock.infer(
        "preprocessing",
        {
            "QUERY": words(text),
            "BAD_WORDS_DICT": words(""),
            "STOP_WORDS_DICT": words(""),
            "REQUEST_OUTPUT_LEN": one(NUM_TOKENS),
        },
    )
    return {
        "input_ids": result.as_numpy("INPUT_ID"),
        "decoder_input_ids": result.as_numpy("DECODER_INPUT_ID"),
        "input_lengths": result.as_numpy("REQUEST_INPUT_LEN"),
        "request_output_len": result.as_numpy("REQUEST_OUTPUT_LEN"),
        "end_id": result.as_numpy("OUT_END_ID"),
        "pad_id": result.as_numpy("OUT_PAD_ID"),
    }


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
    ours = stock.infer("lookahead_bls", asked, ["text_output"]).as_numpy("text_output")

    assert by_hand == ensemble == bls
    assert by_hand.reshape(-1)[0].endswith(ours.reshape(-1)[0])
    assert len(ours.reshape(-1)[0]) < len(by_hand.reshape(-1)[0])


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

    num_rounds = 0
    while len(ids) < end:
        num_drafts = min(num_draft_tokens, end - len(ids) - 1)
        drafts = generate(num_drafts)[len(ids) :] if num_drafts > 0 else None
        new = generate(1 if drafts is None else len(drafts) + 1, drafts)
        assert new[: len(ids)].tolist() == ids.tolist()
        ids, num_rounds = new, num_rounds + 1

    text = stock.infer("postprocessing", {"TOKENS_BATCH": ids[None, None], "SEQUENCE_LENGTH": one(len(ids))})
    assert text.as_numpy("OUTPUT").reshape(-1)[0] == control.reshape(-1)[0]
    bls = {"num_draft_tokens": one(num_draft_tokens), "use_draft_logits": one(False, np.bool_)}
    assert stock.infer("tensorrt_llm_bls", asked | bls, ["text_output"]).as_numpy("text_output") == control
    assert num_rounds == -(-NUM_TOKENS // (num_draft_tokens + 1))


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


def test_w_n_g_are_taken_all_three(stock):
    asked = preprocessed(stock)
    sizes = {"lookahead_window_size": one(3), "lookahead_ngram_size": one(3), "lookahead_verification_set_size": one(3)}

    with_sizes = stock.infer("tensorrt_llm", asked | sizes).as_numpy("output_ids")

    assert with_sizes.tolist() == stock.infer("tensorrt_llm", asked).as_numpy("output_ids").tolist()
    with pytest.raises(InferenceServerException, match="belong together"):
        stock.infer("tensorrt_llm", asked | {"lookahead_window_size": one(3)})


def test_what_needs_several_responses_is_refused_and_the_next_request_works(stock):
    asked = preprocessed(stock)
    with pytest.raises(InferenceServerException, match=r"decoupled is false"):
        stock.infer("tensorrt_llm", asked | {"streaming": one(True, np.bool_)})
    with pytest.raises(InferenceServerException, match="2 rows; this model answers each request once"):
        stock.infer("tensorrt_llm", {name: np.concatenate([value, value]) for name, value in asked.items()})
    text = {"text_input": words(PROMPT), "max_tokens": one(4), "stream": one(True, np.bool_)}
    with pytest.raises(InferenceServerException, match="stream is true"):
        stock.infer("lookahead_bls", text)
    assert stock.infer("tensorrt_llm", asked).as_numpy("output_ids") is not None


def test_a_stop_request_is_answered_with_nothing(stock):
    stop = {"input_ids": one(0), "input_lengths": one(0), "request_output_len": one(0), "stop": one(True, np.bool_)}
    assert stock.infer("tensorrt_llm", stop).as_numpy("output_ids") is None


def test_our_own_client_works_without_streaming_with_every_strategy_at_once(server):
    def work(number: int) -> str:
        strategy = ("none", "trie", "hybrid", "lookahead")[number % 4]
        query = TextQuery(PROMPT, NUM_TOKENS, stream=False, strategy=strategy)
        return complete(query, server.state.grpc_url, "grpc", timeout_s=60).text

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(work, range(16)))) == 1
    with pytest.raises(RequestError, match="stream is true"):
        complete(TextQuery(PROMPT, 4), server.state.grpc_url, "grpc", timeout_s=60)
