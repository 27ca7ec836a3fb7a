"""Requests to the `llmapi` model, drafter and config against a stand-in for TensorRT-LLM that follows the contract."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import numpy as np
import pytest

from pipeline.config.schema import TrieDraftConfig
from pipeline.llmapi import Method
from pipeline.llmapi.llm_arguments import llm_arguments, with_speculation
from pipeline.llmapi.requests import STOPPED, serve
from pipeline.llmapi.settings import DraftSettings
from pipeline.triton_models.python_backend import CallResponses
from pipeline.triton_models.request_loop import RequestLoop
from pipeline.triton_models.tensors import Array
from tests.patience import PATIENCE_S
from tests.triton_requests import Request

PROMPT = "one two three one two"


pytestmark = pytest.mark.usefixtures("triton_backend")


class Asked(Request):
    """A request whose responses are waited for."""

    @property
    def responses(self) -> list[dict[str, Array]]:
        """The tensors of all responses."""
        found, last = [], False
        while not last:
            tensors, last = self.answers.get(timeout=PATIENCE_S)
            assert isinstance(tensors, dict), tensors
            found.append(tensors)
        return found

    @property
    def text(self) -> str:
        """The text of the last response."""
        return text_of(self.responses[-1])

    @property
    def error(self) -> str:
        """The sentence of the last response."""
        last = False
        while not last:
            response, last = self.answers.get(timeout=PATIENCE_S)
        sentence, _ = response
        return str(sentence)


def text_of(tensors: dict[str, Array]) -> str:
    return bytes(tensors["text_output"][0]).decode()


def settings_for(method: Method) -> DraftSettings:
    return DraftSettings(method=method, max_draft_len=5, sources=(TrieDraftConfig(max_bytes=1 << 20),), shared=True)


def arguments() -> dict[str, Any]:
    return {
        "model": "m",
        "max_batch_size": 4,
        "disable_overlap_scheduler": True,
        "speculative_config": {"decoding_type": "NGram", "max_draft_len": 5, "max_matching_ngram_size": 2},
    }


class Service:
    """The `llmapi` model over a stand-in for TensorRT-LLM, as its model.py makes it."""

    def __init__(self, package: Any, method: Method) -> None:
        self.llm = package.LLM(**llm_arguments(arguments(), settings_for(method)))
        answer = partial(serve, self.llm, package.SamplingParams, True)
        self.loop = RequestLoop(answer, CallResponses(), max_calls=1, check_period_s=0.01, stopped=STOPPED)

    def close(self) -> None:
        self.loop.close()
        self.llm.shutdown()


def ask(service: Service, prompt: str = PROMPT, request_id: str = "", **more: Any) -> Asked:
    tensors = {
        "text_input": np.asarray([prompt.encode()], np.object_),
        "sampling_param_max_tokens": np.asarray([40], np.int32),
    }
    request = Asked(request_id, outputs=("text_output", "finish_reason"), **(tensors | more))
    service.loop.submit(request)
    return request


def test_the_drafter_changes_no_text_and_saves_steps(tensorrt_llm):
    plain, ours = Service(tensorrt_llm, "ngram"), Service(tensorrt_llm, "trie")
    try:
        expected = [ask(plain, f"{PROMPT} {number}").text for number in range(4)]
        assert [ask(ours, f"{PROMPT} {number}").text for number in range(4)] == expected
        at_once = [ask(ours, f"{PROMPT} {number}") for number in range(4)]
        assert [client.text for client in at_once] == expected
        llm = ours.llm
        assert llm.num_accepted > 100  # of 320 tokens
        assert llm.num_steps < 200
        assert llm.drafter.drafts is llm.resources.drafts  # one object on the other side, too
        assert llm.drafter.drafts.num_failures == 0
        assert not llm.drafter.drafts._running
        assert llm.drafter.max_draft_len == llm.drafter.max_total_draft_tokens == 5
        assert llm.resources.get_max_resource_count() == 4
        assert plain.llm.num_drafted == 0
    finally:
        plain.close()
        ours.close()
    assert ours.llm.is_shut_down


def takes_concurrency(self: Any, max_concurrency: int | None = None) -> None:
    self.max_concurrency = max_concurrency


def takes_a_schedule(self: Any, max_concurrency: int | None = None, draft_len_schedule: Any = None) -> None:
    self.max_concurrency = max_concurrency


def needs_tokens(self: Any, max_draft_tokens: int, max_concurrency: int | None = None) -> None:
    self.max_draft_tokens = max_draft_tokens


@pytest.mark.parametrize(
    ("constructor", "padded_to"),
    [
        (takes_concurrency, "max_draft_len"),
        (takes_a_schedule, "max_draft_tokens"),
        (needs_tokens, "max_draft_tokens"),
    ],
)
def test_base_classes_of_other_releases_are_fine(tensorrt_llm, monkeypatch, constructor, padded_to):
    from tensorrt_llm._torch.speculative import drafter

    def padded(self: Any, scheduled_requests: Any) -> None:
        drafter.pad(scheduled_requests, getattr(self, padded_to))

    monkeypatch.setattr(drafter.Drafter, "__init__", constructor)
    monkeypatch.setattr(drafter.Drafter, "pad_draft_tokens_for_cuda_graph", padded)
    service = Service(tensorrt_llm, "trie")
    assert len(ask(service).text) == 40
    service.close()


def test_the_suffix_automaton_is_configured_and_ngram_is_the_fallback(tensorrt_llm, monkeypatch, logs):
    import tensorrt_llm.llmapi as llmapi

    config = with_speculation(arguments(), settings_for("suffix_automaton"), 4)["speculative_config"]
    assert config == llmapi.SADecodingConfig(5, -1, True, None)
    for method in ("suffix_automaton", "trie"):
        for name in ("SADecodingConfig", "UserProvidedDecodingConfig"):
            monkeypatch.delattr(llmapi, name, raising=False)
        assert with_speculation(arguments(), settings_for(method), 4) == arguments()
        assert f"NGram drafts instead of {method}" in logs.text
    assert with_speculation(arguments(), settings_for("ngram"), 4) == arguments()


def test_a_stream_brings_the_text_as_it_grows(tensorrt_llm):
    service = Service(tensorrt_llm, "trie")
    whole = ask(service).text
    responses = ask(service, streaming=True, return_finish_reason=True).responses
    texts = [text_of(response) for response in responses]
    assert texts[-1] == whole
    assert len(texts) > 3
    assert all(whole.startswith(text) for text in texts)
    assert [bytes(response["finish_reason"][0]) for response in responses[-2:]] == [b"None", b"length"]
    service.close()


def test_bad_requests_get_a_sentence_and_harm_no_other(tensorrt_llm):
    service = Service(tensorrt_llm, "trie")
    bad = [
        (ask(service, sampling_param_max_tokens=0), "sampling_param_max_tokens is 0"),
        (ask(service, sampling_param_temperature=float("nan")), "sampling_param_temperature is nan"),
        (ask(service, stop=True), "the request has no id"),
        (ask(service, text_input=np.asarray([b"a", b"b"], np.object_)), r"text_input has shape [2]"),
        (nothing := Asked(), "text_input is missing"),
    ]
    service.loop.submit(nothing)
    for client, sentence in bad:
        assert sentence in client.error
    assert len(ask(service).text) == 40
    service.close()


def test_inputs_are_read_before_triton_reuses_their_memory(tensorrt_llm):
    service = Service(tensorrt_llm, "ngram")
    held = threading.Event()
    service.loop._loop.call_soon_threadsafe(held.wait)  # the request begins after `execute` has returned
    client = ask(service)
    client.memory["sampling_param_max_tokens"][:] = 0
    held.set()
    assert len(client.text) == 40
    service.close()


def test_a_fault_inside_the_model_fails_that_request_alone(tensorrt_llm, monkeypatch):
    service = Service(tensorrt_llm, "ngram")
    monkeypatch.setattr(service.llm, "generate_async", lambda *a, **k: 1 / 0)
    assert "division by zero" in ask(service).error
    monkeypatch.undo()
    service.close()


@pytest.mark.parametrize("how", ["leaves", "stops"])
def test_a_client_that_leaves_or_stops_ends_its_request(tensorrt_llm, monkeypatch, how):
    monkeypatch.setattr(tensorrt_llm.LLM, "step_seconds", 0.02)
    started: list[Any] = []
    generate = tensorrt_llm.LLM.generate_async
    monkeypatch.setattr(
        tensorrt_llm.LLM, "generate_async", lambda *a, **k: started.append(generate(*a, **k)) or started[-1]
    )
    service = Service(tensorrt_llm, "ngram")
    client = ask(service, request_id="r", streaming=True, sampling_param_max_tokens=4000)
    assert client.answers.get(timeout=PATIENCE_S)[1] is False
    if how == "leaves":
        client.gone = True
    else:
        assert ask(service, request_id="r", stop=True).error == "the request was cancelled"
    assert client.error == "the request was cancelled"
    assert started[0].aborted
    service.close()
