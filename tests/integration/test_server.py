"""The whole road against a real tritonserver: checkpoint -> engine -> repository -> server -> clients."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
import tritonclient.grpc as triton

from pipeline.config.places import Places, places
from pipeline.config.resolution import resolve_config
from pipeline.engine.submission import Submission
from pipeline.engine.torch.load import create_scheduler
from pipeline.errors import RequestError, ServerError
from pipeline.repository.names import FRONT_MODEL
from pipeline.served.text_codec import load_codec
from pipeline.served.text_request import text_request
from pipeline.serving.client import Completion, Protocol, TextQuery, complete, stream_text
from pipeline.serving.figures import read_metrics
from pipeline.serving.guard import MARK, model_processes, shm_files
from pipeline.serving.road import Served, launch, prepare
from pipeline.serving.server import RunningServer, ServerState, find_server, is_ready, stop_server

pytestmark = [pytest.mark.triton, pytest.mark.slow]

OVERRIDES = ("backend=torch", "device=cpu", *(f"server.{name}_port=0" for name in ("http", "grpc", "metrics")))
WAYS: tuple[tuple[Protocol, bool], ...] = (("grpc", True), ("grpc", False), ("http", True), ("http", False))
STRATEGIES = ("none", "lookahead", "trie", "hybrid", "auto")
PROMPT = "the rat at the tea 日本 🤷🏽‍♀️ the rat at the tea"


@pytest.fixture(scope="module")
def served(where: Places) -> Served:
    return prepare(resolve_config("tiny-random-llama", "latency", OVERRIDES, where=where), where)


@pytest.fixture(scope="module")
def server(served: Served, where: Places, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    running = launch(served, where, tmp_path_factory.mktemp("run folder é"))
    yield running
    running.stop()
    assert not left_over(running.state)


def left_over(state: ServerState) -> list[object]:
    """Processes and shared memory of a server."""
    found: list[object] = list(shm_files(state.server_id))
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # not ours to look at, or gone
            if process.environ().get(MARK) == state.server_id:
                found.append(process)
    return found


def url_of(state: ServerState, protocol: Protocol) -> str:
    return state.grpc_url if protocol == "grpc" else state.http_url


def ask(server: RunningServer, protocol: Protocol = "grpc", **fields: object) -> Completion:
    query = TextQuery(**({"text_input": PROMPT, "max_tokens": 24, "return_statistics": True} | fields))  # type: ignore[arg-type]
    return complete(query, url_of(server.state, protocol), protocol, timeout_s=60)


@pytest.fixture(scope="module")
def expected_ids(served: Served) -> list[int]:
    """Plain greedy decoding in this process, by the same engine without a server."""
    codec = load_codec(served.artifact.tokenizer_dir, served.artifact.engine_dir)
    tensors = {"text_input": np.asarray([[PROMPT.encode()]], np.object_), "max_tokens": np.asarray([[24]], np.int32)}
    request = text_request(codec, tensors, "plain", "none").generation
    return create_scheduler(served.artifact).run([Submission(request, "none")])[0].output_ids


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
    ({"text_input": "the " * 6000}, "the engine holds"),
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
    answer = httpx.post(url, json={"text_input": "a", "max_tokens": 8} | wrong)
    assert answer.status_code == 400
    assert ask(server, max_tokens=2).text is not None


def test_bad_utf8_and_wrong_types_get_an_error_and_the_next_request_works(server):
    client = triton.InferenceServerClient(server.state.grpc_url)

    def send(text: bytes, max_tokens: np.ndarray, dtype: str) -> str:
        inputs = [triton.InferInput("text_input", [1, 1], "BYTES"), triton.InferInput("max_tokens", [1, 1], dtype)]
        inputs[0].set_data_from_numpy(np.asarray([[text]], np.object_))
        inputs[1].set_data_from_numpy(max_tokens)
        answers: list[object] = []
        client.start_stream(lambda result, error: answers.append(error or result))
        client.async_stream_infer("lookahead_bls", inputs)
        client.stop_stream()
        return str(answers[0])

    assert "not valid UTF-8" in send(b"ab\xff", np.asarray([[3]], np.int32), "INT32")
    assert "INT32" in send(b"ab", np.asarray([[3.0]], np.float32), "FP32")
    client.close()
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
    answer = httpx.post(f"{server.state.http_url}/v2/models/ensemble/generate", json=body, timeout=60).json()

    assert answer["text_output"] == ask(server, text_input="the rat", max_tokens=8, strategy="none").text


def test_a_client_that_leaves_makes_room_for_others(server):
    endless = TextQuery(PROMPT, 4000, strategy="none", end_id=-1)
    for protocol in ("grpc", "http"):
        for _ in range(6):  # more than the engine has places
            chunks = stream_text(endless, url_of(server.state, protocol), protocol)
            next(chunks)
            chunks.close()
    started = time.monotonic()
    assert ask(server, max_tokens=4).finish_reason == "length"
    assert time.monotonic() - started < 20

    cancelled = re.compile(r'^lookahead_requests_total\{outcome="cancelled",strategy="none"\} (\d+)', re.M)
    deadline = time.monotonic() + 10
    while True:
        found = cancelled.search(httpx.get(server.state.metrics_url).text)
        if found and int(found[1]) == 12:
            break
        assert time.monotonic() < deadline
        time.sleep(0.2)


def settled_metrics(server: RunningServer) -> dict[str, float]:
    """Metrics are entered a little after a request has ended, the engine's once a second: wait until they stand
    still."""
    values, earlier = read_metrics(server.state.metrics_url), {}
    while values != earlier:
        time.sleep(1.3)
        values, earlier = read_metrics(server.state.metrics_url), values
    return values


def test_metrics_count_what_happened(server):
    ask(server, max_tokens=10, strategy="trie")
    before = settled_metrics(server)
    ask(server, max_tokens=10, strategy="none")
    after = settled_metrics(server)

    assert after["lookahead_output_tokens_total"] == before["lookahead_output_tokens_total"] + 10
    assert after["lookahead_steps_total"] == before["lookahead_steps_total"] + 10
    assert after["lookahead_acceptance_length_count"] == after["lookahead_steps_total"]
    assert after["lookahead_trie_nodes"] > 0
    num_calls = after["lookahead_engine_calls_total"] - before["lookahead_engine_calls_total"]
    assert after["lookahead_kv_sequences_total"] == before["lookahead_kv_sequences_total"] + num_calls
    assert after["lookahead_draft_source_failures"] == 0
    ask(server, max_tokens=10, strategy="none")  # the same prompt once more
    again = settled_metrics(server)
    assert again["lookahead_kv_prefix_hits_total"] == after["lookahead_kv_prefix_hits_total"] + num_calls
    assert again["lookahead_kv_reused_tokens_total"] > after["lookahead_kv_reused_tokens_total"]


def test_a_second_server_in_the_same_place_is_refused_and_a_taken_port_named(server, served, where, tmp_path):
    with pytest.raises(ServerError, match="already runs"):
        launch(served, where, server.run_dir)
    taken = resolve_config(
        "tiny-random-llama", "latency", (*OVERRIDES, f"server.http_port={server.state.http_port}"), where=where
    )
    with pytest.raises(ServerError, match=rf"Port {server.state.http_port} \(server.http_port\)"):
        launch(replace(served, resolved=taken), where, tmp_path)


def test_after_kill_9_nothing_is_left_and_a_new_start_works(served, where, tmp_path):
    killed = launch(served, where, tmp_path)
    for process in (process for process in left_over(killed.state) if isinstance(process, psutil.Process)):
        if "tritonserver" in process.name():
            process.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 30
    while left_over(killed.state) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not left_over(killed.state)
    assert find_server(tmp_path) is None

    again = launch(served, where, tmp_path)
    assert ask(again, max_tokens=4).finish_reason == "length"

    # The guard killed too: the kernel ends the server, and whoever looks next removes the rest.
    psutil.Process(again.state.guard_pid).send_signal(signal.SIGKILL)
    again.wait()
    assert find_server(tmp_path) is None
    assert not left_over(again.state)


def test_clients_of_an_engine_that_died_are_told_and_its_server_ends(served, where, tmp_path):
    running = launch(served, where, tmp_path)
    chunks = stream_text(TextQuery(PROMPT, 4000, strategy="none", end_id=-1), running.state.grpc_url, "grpc")
    next(chunks)
    models = {model: pid for pid, model in model_processes(running.state.server_id).items()}
    assert models.keys() == {"preprocessing", "tensorrt_llm", "postprocessing", FRONT_MODEL}

    os.kill(models["tensorrt_llm"], signal.SIGKILL)

    with pytest.raises((RequestError, ServerError)):
        list(chunks)
    assert running.wait() == 1
    assert "ended by itself (the process of the model tensorrt_llm died" in running.log_path.read_text()
    assert not left_over(running.state)
    running.stop()


def test_an_engine_that_was_tampered_with_is_named(served, where, tmp_path):
    file = next(served.artifact.engine_dir.glob("*.safetensors"))
    whole = file.read_bytes()
    file.unlink()  # it may be a hard link shared with others
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    try:
        with pytest.raises(ServerError, match="was changed after the build"):
            launch(served, where, tmp_path)
    finally:
        file.write_bytes(whole)
    assert find_server(tmp_path) is None


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_command_takes_its_server_with_it(where, how):
    environment = os.environ | {"LOOKAHEAD_ENGINES": str(where.engines), "LOOKAHEAD_CACHE": str(where.cache)}
    command = [sys.executable, "-m", "pipeline", "serve", "--model", "tiny-random-llama"]
    command += [part for override in OVERRIDES for part in ("--set", override)]
    process = subprocess.Popen(command, env=environment, cwd=places().home, stdout=subprocess.PIPE, text=True)
    folder = where.engines / ".run"
    try:
        assert process.stdout is not None
        assert "ready: tiny-random-llama" in process.stdout.readline()
        state = find_server(folder)
        assert state is not None
        assert is_ready(state)
        process.send_signal(how)
        process.wait(60)
        deadline = time.monotonic() + 60
        while left_over(state) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert not left_over(state)
        assert not Path(folder / "server.json").exists()
        assert process.returncode == {signal.SIGKILL: -9}.get(how, 130)
    finally:
        process.kill()
        stop_server(folder)
