"""Drafter, config and service against a stand-in for TensorRT-LLM that follows the contract."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from pipeline.config.schema import TrieDraftConfig
from pipeline.llmapi.llm_arguments import llm_arguments, with_speculation
from pipeline.llmapi.service import LlmService
from pipeline.llmapi.settings import DraftSettings, Method
from pipeline.triton_models.tensors import Array
from tests.patience import PATIENCE_S

PROMPT = "one two three one two"


class Asked:
    """A client that keeps what it was sent."""

    def __init__(self, request_id: str = "") -> None:
        self.request_id = request_id
        self.answers: list[dict[str, Array]] = []
        self.error: str | None = None
        self.gone = False
        self.done = threading.Event()

    def answer(self, tensors: dict[str, Array], *, last: bool) -> None:
        self.answers.append(tensors)
        if last:
            self.done.set()

    def fail(self, error: Exception) -> None:
        self.error = str(error)
        self.done.set()

    def is_gone(self) -> bool:
        return self.gone

    @property
    def text(self) -> str:
        assert self.done.wait(PATIENCE_S)
        assert self.error is None
        return bytes(self.answers[-1]["text_output"][0]).decode()


def settings_for(method: Method) -> DraftSettings:
    return DraftSettings(method=method, max_draft_len=5, sources=(TrieDraftConfig(),), shared=True)


def arguments() -> dict[str, Any]:
    return {
        "model": "m",
        "max_batch_size": 4,
        "disable_overlap_scheduler": True,
        "speculative_config": {"decoding_type": "NGram", "max_draft_len": 5, "max_matching_ngram_size": 2},
    }


def service_of(package: Any, method: Method) -> LlmService:
    llm = package.LLM(**llm_arguments(arguments(), settings_for(method)))
    return LlmService(llm, package.SamplingParams, 0.01, can_stream=True)


def ask(service: LlmService, prompt: str = PROMPT, request_id: str = "", **more: Any) -> Asked:
    tensors = {"text_input": np.asarray([prompt.encode()], np.object_)}
    tensors["sampling_param_max_tokens"] = np.asarray([40], np.int32)
    client = Asked(request_id)
    service.submit(tensors | {name: np.asarray([value]) for name, value in more.items()}, client)
    return client


def test_the_drafter_changes_no_text_and_saves_steps(tensorrt_llm):
    plain, ours = service_of(tensorrt_llm, "ngram"), service_of(tensorrt_llm, "trie")
    try:
        expected = [ask(plain, f"{PROMPT} {number}").text for number in range(4)]
        assert [ask(ours, f"{PROMPT} {number}").text for number in range(4)] == expected
        at_once = [ask(ours, f"{PROMPT} {number}") for number in range(4)]
        assert [client.text for client in at_once] == expected
        llm = ours._llm
        assert llm.num_accepted > 100  # of 320 tokens
        assert llm.num_steps < 200
        assert llm.drafter.drafts is llm.resources.drafts  # one object on the other side, too
        assert llm.drafter.drafts.num_failures == 0
        assert not llm.drafter.drafts._running
        assert llm.drafter.max_draft_len == llm.drafter.max_total_draft_tokens == 5
        assert llm.resources.get_max_resource_count() == 4
        assert plain._llm.num_drafted == 0
    finally:
        plain.close()
        ours.close()
    assert ours._llm.is_shut_down


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
    service = service_of(tensorrt_llm, "trie")
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
    service = service_of(tensorrt_llm, "trie")
    whole = ask(service).text
    client = ask(service, streaming=True, return_finish_reason=True)
    assert client.text == whole
    texts = [bytes(answer["text_output"][0]).decode() for answer in client.answers]
    assert len(texts) > 3
    assert all(whole.startswith(text) for text in texts)
    assert [bytes(answer["finish_reason"][0]) for answer in client.answers[-2:]] == [b"None", b"length"]
    service.close()


def test_bad_requests_get_a_sentence_and_harm_no_other(tensorrt_llm):
    service = service_of(tensorrt_llm, "trie")
    bad = [
        (ask(service, sampling_param_max_tokens=0), "sampling_param_max_tokens is 0"),
        (ask(service, sampling_param_temperature=float("nan")), "sampling_param_temperature is nan"),
        (ask(service, stop=True), "stop needs the id"),
    ]
    nothing = Asked()
    service.submit({}, nothing)
    two = Asked()
    service.submit({"text_input": np.asarray([b"a", b"b"], np.object_)}, two)
    bad += [(nothing, "text_input is missing"), (two, r"text_input has shape [2]")]
    for client, sentence in bad:
        assert client.done.wait(PATIENCE_S)
        assert client.error is not None
        assert sentence in client.error
    assert len(ask(service).text) == 40
    service.close()


def test_a_fault_inside_the_model_fails_that_request_alone(tensorrt_llm, monkeypatch):
    service = service_of(tensorrt_llm, "ngram")
    monkeypatch.setattr(service._llm, "generate_async", lambda *a, **k: 1 / 0)
    client = ask(service)
    assert client.done.wait(PATIENCE_S)
    assert client.error == "division by zero"
    monkeypatch.undo()
    service.close()


@pytest.mark.parametrize("how", ["leaves", "stops"])
def test_a_client_that_leaves_or_stops_ends_its_request(tensorrt_llm, monkeypatch, how):
    monkeypatch.setattr(tensorrt_llm.LLM, "step_seconds", 0.02)
    service = service_of(tensorrt_llm, "ngram")
    client = ask(service, request_id="r", streaming=True, sampling_param_max_tokens=4000)
    if how == "leaves":
        client.gone = True
    else:
        stopper = ask(service, request_id="r", stop=True)
        assert stopper.done.wait(PATIENCE_S)
    assert client.done.wait(PATIENCE_S)
    assert client.error == "the request ended before its output was complete"
    assert not service._by_id
    service.close()
