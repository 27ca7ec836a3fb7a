"""End to end against a real tritonserver: checkpoint -> engine -> repository -> server -> clients."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton

from pipeline.engine.scheduler_factory import create_scheduler
from pipeline.engine.submission import Submission
from pipeline.engine.torch.load import load_engine
from pipeline.errors import RequestError
from pipeline.repository.names import FRONT_MODEL, STOCK_FRONT_MODEL
from pipeline.server.client import Protocol, TextQuery, stream_text
from pipeline.server.startup import PreparedServer
from pipeline.triton_models.text_codec import load_codec
from pipeline.triton_models.text_request import text_request
from tests.integration.servers import LONG, PROMPT, ask, num_cancelled, settled_metrics, streamed, url_of
from tests.patience import PATIENCE_S
from tests.servers import wait_for

pytestmark = [pytest.mark.triton, pytest.mark.slow]
WAYS: tuple[tuple[Protocol, bool], ...] = (("grpc", True), ("grpc", False), ("http", True), ("http", False))
KV_SEQUENCES = "lookahead_kv_sequences_total"
STRATEGIES = ("none", "lookahead", "trie", "hybrid", "auto")


@pytest.fixture(scope="module")
def expected_ids(served: PreparedServer) -> list[int]:
    """Plain greedy decoding in this process, by the same engine without a server."""
    codec = load_codec(served.artifact.tokenizer_dir, served.artifact.engine_dir)
    tensors = {"text_input": np.asarray([[PROMPT.encode()]], np.object_), "max_tokens": np.asarray([[24]], np.int32)}
    request = text_request(codec, tensors, "plain", "none", 1 << 20).generation
    return (
        create_scheduler(served.artifact, load_engine(served.artifact)).run([Submission(request, "none")])[0].output_ids
    )


def test_every_strategy_on_every_way_gives_the_tokens_of_plain_decoding(server, expected_ids):
    texts = set()
    for strategy in STRATEGIES:
        for protocol, stream in WAYS:
            completion = ask(server, protocol, strategy=strategy, stream=stream)
            assert completion.statistics is not None
            assert completion.statistics["output_ids"] == expected_ids, (strategy, protocol, stream)
            assert completion.finish_reason == "length"
            texts.add(completion.text)
    assert len(texts) == 1


def test_seeded_sampling_gives_one_text_on_every_way_and_another_for_another_seed(server):
    texts = {
        seed: {
            ask(server, protocol, strategy=strategy, stream=stream, seed=seed, temperature=0.8, top_p=0.9).text
            for strategy in STRATEGIES
            for protocol, stream in WAYS
        }
        for seed in (1, 2)
    }

    assert len(texts[1]) == len(texts[2]) == 1
    assert texts[1] != texts[2]


def test_drafts_are_accepted_once_the_text_is_known(server):
    ask(server, strategy="trie", namespace="known")

    completion = ask(server, strategy="trie", namespace="known")

    assert completion.statistics is not None
    assert completion.statistics["mean_acceptance_length"] > 2


def test_streaming_brings_several_pieces(server):
    query = TextQuery(PROMPT, 24, strategy="none")
    for protocol in ("grpc", "http"):
        pieces = [chunk.text for chunk in stream_text(query, url_of(server.state, protocol), protocol)]
        assert len([piece for piece in pieces if piece]) > 3


def test_eight_clients_at_once_get_what_they_get_alone(server):
    prompts = [f"{PROMPT} number {number}" for number in range(8)]
    alone = [ask(server, text_input=prompt, strategy="none").text for prompt in prompts]

    def work(number: int) -> list[str]:
        protocol, stream = WAYS[number % 4]
        strategy = STRATEGIES[number % 5]
        return [
            ask(server, protocol, text_input=prompts[number], stream=stream, strategy=strategy).text for _ in range(3)
        ]

    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(work, range(8)))

    assert together == [[text] * 3 for text in alone]


BAD = [
    ({"text_input": ""}, "text_input is empty"),
    ({"text_input": "the " * 40_000}, "prompt and output may have"),
    ({"max_tokens": -1}, "max_tokens is -1"),
    ({"strategy": "magic"}, "strategy is 'magic'"),
    ({"temperature": -1.0}, "temperature is -1"),
    ({"repetition_penalty": 0.0}, "repetition_penalty is 0"),
    ({"messages": "[{}]"}, "messages"),
    ({"num_draft_tokens": -1}, "num_draft_tokens is -1"),
]


@pytest.mark.parametrize(("wrong", "sentence"), BAD, ids=[sentence for _, sentence in BAD])
def test_a_bad_request_gets_a_sentence_and_the_next_one_works(server, wrong, sentence):
    for protocol, stream in WAYS:
        with pytest.raises(RequestError, match=sentence):
            ask(server, protocol, stream=stream, **wrong)
    url = f"{server.state.http_url}/v2/models/{FRONT_MODEL}/generate"
    answer = httpx.post(url, json={"text_input": "a", "max_tokens": 8} | wrong, timeout=PATIENCE_S)
    assert answer.status_code == 400
    assert ask(server, max_tokens=2).text is not None


def test_bad_utf8_and_wrong_types_get_an_error_and_the_next_request_works(server):
    def send(text: bytes, max_tokens: np.ndarray, dtype: str) -> str:
        inputs = [triton.InferInput("text_input", [1, 1], "BYTES"), triton.InferInput("max_tokens", [1, 1], dtype)]
        inputs[0].set_data_from_numpy(np.asarray([[text]], np.object_))
        inputs[1].set_data_from_numpy(max_tokens)
        return str(streamed(server.state.grpc_url, FRONT_MODEL, inputs)[0])

    assert "not valid UTF-8" in send(b"ab\xff", np.asarray([[3]], np.int32), "INT32")
    assert "INT32" in send(b"ab", np.asarray([[3.0]], np.float32), "FP32")
    assert ask(server, max_tokens=2).finish_reason == "length"


def test_a_stop_word_is_not_shown(server):
    whole = ask(server, strategy="none").text
    word = whole[8:10]
    for strategy in STRATEGIES:
        completion = ask(server, strategy=strategy, stop_words=[word])
        assert completion.text == whole[: whole.index(word)]
        assert completion.finish_reason == "stop_words"


def test_chat_templates_and_conversations_are_the_same_prompt(server):
    by_flag = ask(server, text_input="hello", use_chat_template=True, system_prompt="be brief")
    conversation = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
    by_messages = ask(server, "http", text_input="", messages=json.dumps(conversation))

    assert by_flag.statistics is not None
    assert by_messages.statistics is not None
    assert by_flag.statistics["prompt_ids"] == by_messages.statistics["prompt_ids"]
    assert by_flag.text == by_messages.text


def test_the_stock_ensemble_answers_a_stock_client(server):
    body = {
        "text_input": "the rat",
        "max_tokens": 8,
        "bad_words": "",
        "stop_words": "",
        "exclude_input_in_output": True,
    }
    answer = httpx.post(f"{server.state.http_url}/v2/models/ensemble/generate", json=body, timeout=PATIENCE_S).json()

    assert answer["text_output"] == ask(server, text_input="the rat", max_tokens=8, strategy="none").text


def test_a_client_that_leaves_makes_room_for_others(server):
    endless = TextQuery(PROMPT, LONG, strategy="none", end_id=-1)
    settled_metrics(server)
    num_before = num_cancelled(server)
    for protocol in ("grpc", "http"):
        for _ in range(6):  # more than the engine has places
            chunks = stream_text(endless, url_of(server.state, protocol), protocol)
            next(chunks)
            chunks.close()
    assert ask(server, max_tokens=4).finish_reason == "length"

    assert wait_for(lambda: num_cancelled(server) == num_before + 12)


@pytest.mark.parametrize("model", [FRONT_MODEL, STOCK_FRONT_MODEL])
def test_a_client_that_leaves_a_whole_response_ends_its_request(server, model):
    url = f"{server.state.http_url}/v2/models/{model}/generate"
    body = {"text_input": PROMPT, "max_tokens": LONG, "strategy": "none", "end_id": -1}
    settled_metrics(server)  # the clients of another test may have left a moment ago
    before, deadline = num_cancelled(server), time.monotonic() + PATIENCE_S
    # A busy server may not have the request yet when the client leaves, and a fast one may be done.
    while num_cancelled(server) == before:
        assert time.monotonic() < deadline
        with suppress(httpx.TimeoutException):
            httpx.post(url, json=body, timeout=0.5)
        settled_metrics(server)


def test_metrics_count_what_happened(server):
    num_requests = settled_metrics(server).get("lookahead_requests_total", 0)
    ask(server, max_tokens=10, strategy="trie")
    before = settled_metrics(server, requests_total=num_requests)
    ask(server, max_tokens=10, strategy="none")
    after = settled_metrics(server, requests_total=num_requests + 1)

    assert after["lookahead_output_tokens_total"] == before["lookahead_output_tokens_total"] + 10
    assert after["lookahead_steps_total"] == before["lookahead_steps_total"] + 10
    assert after["lookahead_acceptance_length_count"] == after["lookahead_steps_total"]
    assert after["lookahead_trie_nodes"] > 0
    num_calls = after["lookahead_engine_calls_total"] - before["lookahead_engine_calls_total"]
    after = settled_metrics(server, kv_sequences_total=before[KV_SEQUENCES] + num_calls - 1)
    assert after[KV_SEQUENCES] == before[KV_SEQUENCES] + num_calls
    assert after["lookahead_draft_source_failures"] == 0
    ask(server, max_tokens=10, strategy="none")  # the same prompt once more
    again = settled_metrics(server, kv_prefix_hits_total=after["lookahead_kv_prefix_hits_total"] + num_calls - 1)
    assert again["lookahead_kv_prefix_hits_total"] == after["lookahead_kv_prefix_hits_total"] + num_calls
    assert again["lookahead_kv_reused_tokens_total"] > after["lookahead_kv_reused_tokens_total"]
