"""The BLS loop against TensorRT-LLM's contract, end to end: what clients of the front model get over gRPC."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pipeline.server.client import Completion, TextQuery, stream_text
from pipeline.server.server import RunningServer
from tests.integration import servers
from tests.integration.servers import num_cancelled, settled_metrics
from tests.integration.strict_repository import PROMPT, request_of
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.triton, pytest.mark.slow]
NUM_PLACES = 4
SAMPLED = {"temperature": 0.8, "top_p": 0.9, "seed": 5}


def ask(strict: RunningServer, **fields: Any) -> Completion:
    return servers.ask(strict, **({"text_input": PROMPT, "max_tokens": 40} | fields))


def ids_of(completion: Completion) -> list[int]:
    assert completion.statistics is not None
    ids: list[int] = completion.statistics["output_ids"]
    return ids


PROMPTS = (PROMPT, "a tea for the rat, a tea for", "日本 🤷🏽‍♀️ 日本")


@pytest.mark.parametrize("fields", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_every_strategy_gives_the_tokens_of_plain_decoding(strict, codec, reference, fields):
    for prompt in PROMPTS:
        expected = reference(request_of(codec, prompt, 40, **fields))
        for strategy in ("none", "trie", "trie", "auto") + (() if fields else ("lookahead",)):
            for stream in (False, True):
                completion = ask(strict, text_input=prompt, strategy=strategy, stream=stream, **fields)
                assert ids_of(completion) == expected, (prompt, strategy, stream)
                assert completion.finish_reason == "length"


def test_many_clients_at_once_get_what_they_get_alone(strict):
    ways: list[dict[str, Any]] = [
        {"strategy": "trie"},
        {"strategy": "lookahead"},
        {"strategy": "none", "stream": False},
        {"strategy": "trie", **SAMPLED},
        {"strategy": "auto", "stop_words": ["e"]},
    ]

    def work(number: int) -> list[int]:
        return ids_of(ask(strict, text_input=f"{PROMPT} {number % 6}", **ways[number % 5]))

    alone = {number: work(number) for number in range(30)}
    with ThreadPoolExecutor(8) as pool:
        together = dict(zip(alone, pool.map(work, alone), strict=True))

    assert together == alone


def prompts_computed(strict: RunningServer, **more_than: float) -> tuple[float, float]:
    """Sequences opened by the engines since the start, and prompt tokens computed for them."""
    values = settled_metrics(strict, **more_than)
    computed = values["lookahead_kv_prompt_tokens_total"] - values["lookahead_kv_reused_tokens_total"]
    return values["lookahead_kv_sequences_total"], computed


@pytest.mark.parametrize("stream", [False, True])
def test_128_tokens_of_a_lookahead_engine_compute_the_prompt_once(strict, codec, reference, stream):
    expected = reference(request_of(codec, PROMPT, 128, end_id=-1))
    num_opened, num_computed = prompts_computed(strict)

    completion = ask(
        strict, max_tokens=128, strategy="lookahead", end_id=-1, stop_words=["never", "日本 no"], stream=stream
    )

    assert ids_of(completion) == expected
    assert completion.statistics is not None
    assert completion.statistics["num_engine_calls"] == 1
    opened, computed = prompts_computed(strict, kv_sequences_total=num_opened)
    assert opened - num_opened == 1
    assert computed - num_computed == len(codec.encode(PROMPT))


def test_a_stop_word_ends_the_output_and_the_engines_request(strict, codec, reference):
    text = codec.decode(reference(request_of(codec, PROMPT, 60, end_id=-1)))
    word = text[20:23]
    for stream in (False, True):
        completion = ask(strict, max_tokens=60, strategy="lookahead", end_id=-1, stop_words=[word], stream=stream)
        assert completion.text == text[: text.index(word)]
        assert completion.finish_reason == "stop_words"


def leave(strict: RunningServer, strategy: str, num_clients: int) -> None:
    """Clients that ask for long outputs and leave at the first piece of them."""
    streams = [
        stream_text(TextQuery(PROMPT, 250, strategy=strategy, end_id=-1), strict.state.grpc_url, "grpc")
        for _ in range(num_clients)
    ]
    for chunks in streams:
        next(chunks)
    for chunks in streams:
        chunks.close()


def test_a_client_that_leaves_ends_the_engines_request(strict):
    before = after = settled_metrics(strict)
    num_left = 0
    # A fast engine may be done before the front model looks for its client, which it does ten times a second.
    while after["lookahead_engine_abandoned_total"] == before["lookahead_engine_abandoned_total"]:
        assert num_left < 30 * NUM_PLACES
        leave(strict, "lookahead", NUM_PLACES)
        num_left += NUM_PLACES
        counts = {name: before[f"lookahead_{name}"] + num_left - 1 for name in ("requests_total", "kv_sequences_total")}
        after = settled_metrics(strict, **counts)

    assert after["lookahead_kv_sequences_total"] == before["lookahead_kv_sequences_total"] + num_left


def test_clients_that_leave_make_room_for_others(strict):
    for strategy in ("none", "trie", "lookahead"):
        num_before, deadline = num_cancelled(strict), time.monotonic() + PATIENCE_S
        while num_cancelled(strict) == num_before:
            assert time.monotonic() < deadline
            leave(strict, strategy, NUM_PLACES + 2)
            assert ask(strict, strategy=strategy, max_tokens=3).finish_reason == "length"
        assert ask(strict, strategy=strategy, max_tokens=3).finish_reason == "length"
