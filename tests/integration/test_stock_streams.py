"""Stock clients that run concurrently or stream, over both libraries and both HTTP endpoints."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as grpc
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http as http
import tritonclient.http.aio as http_aio
from tritonclient.utils import InferenceServerException

from pipeline.server.client import TextQuery, complete
from pipeline.server.server import RunningServer
from tests.integration.servers import LONG, streamed
from tests.integration.stock_clients import NUM_TOKENS, ONCE, PROMPT, one, text_inputs, words
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.triton, pytest.mark.slow]


@pytest.fixture(scope="module")
def expected(server: RunningServer) -> str:
    """The output without the prompt."""
    query = TextQuery(PROMPT, NUM_TOKENS, stream=False, strategy="none")
    return complete(query, server.state.grpc_url, "grpc", timeout_s=PATIENCE_S).text


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

    assert httpx.post(f"{url}/generate", json=body, timeout=PATIENCE_S).json()["text_output"] == prompt + expected
    for stream, text in ((False, prompt + expected), (True, expected)):
        answer = httpx.post(f"{url}/generate_stream", json=body | {"stream": stream}, timeout=PATIENCE_S).text
        pieces = [json.loads(line.removeprefix("data:")) for line in answer.splitlines() if line.startswith("data:")]
        assert "".join(piece["text_output"] for piece in pieces) == text
        assert len(pieces) == 1 or (model == "lookahead_bls" and stream)


@pytest.mark.parametrize("model", [*ONCE, "lookahead_bls"])
def test_grpc_streams_concatenate_to_the_output(server, expected, model):
    """end_to_end_grpc_client.py --streaming."""
    inputs = text_inputs(grpc, stream=one(True, np.bool_))
    answers = streamed(server.state.grpc_url, model, inputs, request_id="1")

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
        statistics = complete(query, server.state.grpc_url, "grpc", timeout_s=PATIENCE_S).statistics
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
        return complete(query, server.state.grpc_url, "grpc", timeout_s=PATIENCE_S).text

    # Over HTTP, NVIDIA's client must not be used by two threads at once.
    with ThreadPoolExecutor(8 if stock.library is grpc else 1) as pool:
        assert set(pool.map(work, range(24))) == {expected}


def test_clients_that_leave_make_room_for_others(server):
    """A client that no longer waits for `infer` frees its place in the engine."""
    with grpc.InferenceServerClient(server.state.grpc_url) as client:
        inputs = text_inputs(grpc, max_tokens=one(LONG), end_id=one(-1), strategy=words("none"))
        for _ in range(12):  # more than the engine has places
            with pytest.raises(InferenceServerException, match="DEADLINE_EXCEEDED"):
                client.infer("tensorrt_llm_bls", inputs, client_timeout=0.2)
        assert client.infer("tensorrt_llm_bls", text_inputs(grpc), client_timeout=PATIENCE_S) is not None
