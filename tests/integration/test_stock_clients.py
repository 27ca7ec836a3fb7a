"""Requests in the very shape in which TensorRT-LLM's own Triton clients send them, read as those clients read them.

The server runs with its default settings. Answers are never reshaped: texts are `output[0].decode()`, ids and counts
are `output[0][0]`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as grpc
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http as http
import tritonclient.http.aio as http_aio
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from pipeline.server.client import TextQuery, complete
from pipeline.server.server import RunningServer

pytestmark = [pytest.mark.triton, pytest.mark.slow]

PROMPT = "the rat at the tea; the rat at the tea; the rat"
NUM_TOKENS = 24
ONCE = ("ensemble", "tensorrt_llm_bls")


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

    num_rounds = 0
    while len(ids) < end:
        num_drafts = min(num_draft_tokens, end - len(ids) - 1)
        drafts = generate(num_drafts)[len(ids) :] if num_drafts > 0 else None
        new = generate(1 if drafts is None else len(drafts) + 1, drafts)
        assert new[: len(ids)].tolist() == ids.tolist()
        ids, num_rounds = new, num_rounds + 1

    text = stock.infer("postprocessing", {"TOKENS_BATCH": ids[None, None], "SEQUENCE_LENGTH": one(len(ids))})
    assert text.as_numpy("OUTPUT")[0].decode() == control[0].decode()
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
    with pytest.raises(InferenceServerException, match="2 rows, and this model sends one response"):
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


def text_inputs(library: Any, **more: np.ndarray) -> list[Any]:
    inputs = []
    for name, array in ({"text_input": words(PROMPT), "max_tokens": one(NUM_TOKENS)} | more).items():
        tensor = library.InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    return inputs


@pytest.fixture(scope="module")
def expected(server: RunningServer) -> str:
    """The output without the prompt."""
    query = TextQuery(PROMPT, NUM_TOKENS, stream=False, strategy="none")
    return complete(query, server.state.grpc_url, "grpc", timeout_s=60).text


@pytest.mark.parametrize("model", ONCE)
def test_asyncio_clients_infer(server, expected, model):
    async def texts() -> list[str]:
        found = []
        http_url = server.state.http_url.removeprefix("http://")
        for library, client in (
            (grpc, grpc_aio.InferenceServerClient(server.state.grpc_url)),
            (http, http_aio.InferenceServerClient(http_url)),
        ):
            async with client:
                asked = [client.infer(model, text_inputs(library)) for _ in range(6)]
                found += [answer.as_numpy("text_output")[0].decode() for answer in await asyncio.gather(*asked)]
        return found

    assert asyncio.run(texts()) == [PROMPT + expected] * 12


@pytest.mark.parametrize("model", [*ONCE, "lookahead_bls"])
def test_generate_and_generate_stream(server, expected, model):
    url, prompt = f"{server.state.http_url}/v2/models/{model}", PROMPT if model in ONCE else ""
    body: dict[str, Any] = {"text_input": PROMPT, "max_tokens": NUM_TOKENS}

    assert httpx.post(f"{url}/generate", json=body).json()["text_output"] == prompt + expected
    for stream, text in ((False, prompt + expected), (True, expected)):
        answer = httpx.post(f"{url}/generate_stream", json=body | {"stream": stream}).text
        pieces = [json.loads(line.removeprefix("data:")) for line in answer.splitlines() if line.startswith("data:")]
        assert "".join(piece["text_output"] for piece in pieces) == text
        assert len(pieces) == 1 or (model == "lookahead_bls" and stream)


@pytest.mark.parametrize("model", [*ONCE, "lookahead_bls"])
def test_grpc_streams_concatenate_to_the_output(server, expected, model):
    """end_to_end_grpc_client.py --streaming."""
    answers: list[Any] = []
    with grpc.InferenceServerClient(server.state.grpc_url) as client:
        client.start_stream(lambda result, error: answers.append(error or result))
        client.async_stream_infer(model, text_inputs(grpc, stream=one(True, np.bool_)), request_id="1")
        client.stop_stream()

    assert "".join(answer.as_numpy("text_output")[0].decode() for answer in answers) == expected
    assert (len(answers) > 1) is (model == "lookahead_bls")


def test_both_kinds_of_model_draft_from_what_the_other_has_seen(server):
    """One engine, one trie: what `lookahead_bls` has generated is drafted for `tensorrt_llm_bls`, and the reverse."""

    def infer(namespace: str) -> dict[str, Any]:
        asked = {"strategy": words("trie"), "namespace": words(namespace), "return_statistics": one(True, np.bool_)}
        with grpc.InferenceServerClient(server.state.grpc_url) as client:
            answer = client.infer("tensorrt_llm_bls", text_inputs(grpc, **asked))
        statistics: dict[str, Any] = json.loads(answer.as_numpy("statistics")[0])
        return statistics

    def stream(namespace: str) -> dict[str, Any]:
        query = TextQuery(PROMPT, NUM_TOKENS, strategy="trie", namespace=namespace, return_statistics=True)
        statistics = complete(query, server.state.grpc_url, "grpc", timeout_s=60).statistics
        assert statistics is not None
        return statistics

    for number, (first, second) in enumerate(((infer, stream), (stream, infer))):
        fresh, warm = first(f"kind {number}"), second(f"kind {number}")
        assert warm["output_ids"] == fresh["output_ids"]
        assert warm["num_accepted_tokens"] > fresh["num_accepted_tokens"]


def test_many_clients_of_all_kinds_at_once(server, stock, expected):
    def work(number: int) -> str:
        if number % 2:
            answer = stock.infer(ONCE[number % 4 // 2], {"text_input": words(PROMPT), "max_tokens": one(NUM_TOKENS)})
            return answer.as_numpy("text_output")[0].decode().removeprefix(PROMPT)
        strategy = ("none", "trie", "hybrid", "lookahead")[number // 2 % 4]
        query = TextQuery(PROMPT, NUM_TOKENS, stream=number % 3 > 0, strategy=strategy)
        return complete(query, server.state.grpc_url, "grpc", timeout_s=60).text

    # Over HTTP, NVIDIA's client must not be used by two threads at once.
    with ThreadPoolExecutor(8 if stock.library is grpc else 1) as pool:
        assert set(pool.map(work, range(24))) == {expected}


def test_clients_that_leave_make_room_for_others(server):
    """A client that no longer waits for `infer` frees its place in the engine."""
    with grpc.InferenceServerClient(server.state.grpc_url) as client:
        inputs = text_inputs(grpc, max_tokens=one(1500), end_id=one(-1))
        for _ in range(12):  # more than the engine has places
            with pytest.raises(InferenceServerException, match="Deadline Exceeded"):
                client.infer("tensorrt_llm_bls", inputs, client_timeout=0.2)
        assert client.infer("tensorrt_llm_bls", text_inputs(grpc), client_timeout=30) is not None
