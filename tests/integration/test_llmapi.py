"""The `llmapi` model on a real tritonserver, with a stand-in for TensorRT-LLM that follows the contract."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton

from pipeline.config.folders import folders
from pipeline.config.resolution import resolve_config
from pipeline.engine.backend import backend_of
from pipeline.llmapi.repository import MODEL, render_llmapi
from pipeline.server.server import RunningServer, start_server
from tests.integration.servers import streamed
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.triton]

STAND_INS = Path(__file__).parents[1] / "stand_ins"
PROMPT = "one two three one two"


@pytest.fixture(scope="module")
def decoupled_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    yield from served(tmp_path_factory.mktemp("llmapi"), decoupled=True)


@pytest.fixture(scope="module")
def stock_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    yield from served(tmp_path_factory.mktemp("llmapi-stock"), decoupled=False)


def served(folder: Path, decoupled: bool) -> Iterator[RunningServer]:
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir()
    overrides = ("backend=tensorrt_llm", "model.checkpoint={source: local, path: " + str(checkpoint) + "}")
    resolved = resolve_config("llama2-7b", "latency", overrides)
    repository = render_llmapi(resolved, "trie", folder / "repository", folders().home / "triton_repo", decoupled)
    # Triton's Python stub does not look at PYTHONPATH.
    code = repository / MODEL / "1" / "model.py"
    text = code.read_text().replace(
        "import os\n", f"import os\nimport sys\nsys.path.insert(0, {str(STAND_INS)!r})\n", 1
    )
    code.write_text(text)
    ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0, "startup_timeout_s": PATIENCE_S}
    resolved = resolved.with_settings("server", **ports)
    run_dir = folder / "run"
    make_command = backend_of("torch").make_command(resolved, repository, folders(), run_dir, None, lambda note: None)
    running = start_server(resolved, repository, run_dir, make_command)
    yield running
    running.stop()


def inputs_of(prompt: str, streaming: bool, max_tokens: int = 40) -> list[triton.InferInput]:
    values = {
        "text_input": (np.asarray([prompt.encode()], np.object_), "BYTES"),
        "streaming": (np.asarray([streaming]), "BOOL"),
        "sampling_param_max_tokens": (np.asarray([max_tokens], np.int32), "INT32"),
        "return_finish_reason": (np.asarray([True]), "BOOL"),
    }
    inputs = []
    for name, (value, dtype) in values.items():
        tensor = triton.InferInput(name, list(value.shape), dtype)
        tensor.set_data_from_numpy(value)
        inputs.append(tensor)
    return inputs


def ask(server: RunningServer, prompt: str, streaming: bool) -> list[dict[str, Any]]:
    """The answers to one request over a gRPC stream."""
    answers = streamed(server.state.grpc_url, MODEL, inputs_of(prompt, streaming))
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    names = ("text_output", "finish_reason")
    return [{name: answer.as_numpy(name)[0].decode() for name in names} for answer in answers]


def test_a_prompt_is_answered_whole_or_as_it_grows(decoupled_server):
    (whole,) = ask(decoupled_server, PROMPT, streaming=False)
    pieces = ask(decoupled_server, PROMPT, streaming=True)

    assert len(whole["text_output"]) == 40
    assert whole["finish_reason"] == "length"
    assert pieces[-1] == whole
    assert all(whole["text_output"].startswith(piece["text_output"]) for piece in pieces)
    assert len(pieces) < 40  # drafts were accepted, so a step brought several tokens


def test_http_and_errors(decoupled_server):
    url = f"{decoupled_server.state.http_url}/v2/models/{MODEL}/generate_stream"
    answer = httpx.post(url, json={"text_input": PROMPT, "sampling_param_max_tokens": 0}, timeout=PATIENCE_S)
    assert "sampling_param_max_tokens is 0" in answer.text
    fine = httpx.post(url, json={"text_input": PROMPT, "sampling_param_max_tokens": 4}, timeout=PATIENCE_S)
    assert "text_output" in fine.text


def test_the_stock_client_gets_its_answer_by_async_infer(decoupled_server, stock_server):
    """NVIDIA's llmapi_client.py sends its request so; its model answers once."""
    (streamed,) = ask(decoupled_server, PROMPT, streaming=False)
    answers: queue.Queue[Any] = queue.Queue()
    with triton.InferenceServerClient(stock_server.state.grpc_url) as client:
        for streaming in (False, True):
            client.async_infer(
                MODEL, inputs_of(PROMPT, streaming), callback=lambda result, error: answers.put(error or result)
            )
            answer = answers.get(timeout=PATIENCE_S)
            if streaming:
                assert "write the repository with --decoupled" in str(answer)
            else:
                assert answer.as_numpy("text_output")[0].decode() == streamed["text_output"]


def test_stop_ends_a_request_with_an_error_as_in_the_stock_model(stock_server):
    stop = triton.InferInput("stop", [1], "BOOL")
    stop.set_data_from_numpy(np.asarray([True]))
    with triton.InferenceServerClient(stock_server.state.grpc_url) as client:

        def ask(inputs: list[Any]) -> queue.Queue[Any]:
            answer: queue.Queue[Any] = queue.Queue()
            client.async_infer(
                MODEL, inputs, callback=lambda result, error: answer.put(error or result), request_id="r"
            )
            return answer

        running = ask(inputs_of(PROMPT, False, max_tokens=10**6))
        while running.empty():  # on a busy machine a stop overtakes its request
            assert "the request was cancelled" in str(ask([*inputs_of("", False), stop]).get(timeout=PATIENCE_S))
        assert "the request was cancelled" in str(running.get())
