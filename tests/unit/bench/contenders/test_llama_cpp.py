"""The llama.cpp baselines against a stand-in with the documented interface of `llama_cpp.Llama`."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.bench.contenders import llama_cpp
from pipeline.bench.contenders.llama_cpp import LLAMA_CPP_BASELINES, LlamaCppBaseline, check_llama_cpp, load_llama_cpp
from pipeline.bench.data.workload import Prompt
from pipeline.config.resolution import resolve_config
from pipeline.config.schema import ModelConfig
from pipeline.errors import UserError
from tests.fakes import make_request

TEXT = Prompt(("text",))


class StandIn:
    """Repeats 5, 6, 7. With drafts each pass behind the first verifies two tokens, of which one is right."""

    def __init__(self, with_drafts: bool) -> None:
        self.num_resets = 0
        self.passes: list[list[int]] = []
        self._with_drafts = with_drafts

    def reset(self) -> None:
        self.num_resets += 1

    def eval(self, tokens: Sequence[int]) -> None:
        self.passes.append(list(tokens))

    def generate(self, tokens: Sequence[int], temp: float) -> Generator[int, None, None]:
        assert temp == 0.0
        self.eval(tokens)
        yield 5
        position = 1
        while True:
            right = 5 + position % 3
            self.eval([right, right, 99] if self._with_drafts else [right])
            yield right
            position += 1
            if self._with_drafts:
                yield 5 + position % 3
                position += 1


def model(name: str) -> ModelConfig:
    return resolve_config(name, "latency", ("backend=torch", "device=cpu")).model


def test_passes_tokens_and_drafts_are_counted() -> None:
    for with_drafts, steps, drafted in ((False, 7, 0), (True, 4, 6)):
        llama: Any = StandIn(with_drafts)
        found = LlamaCppBaseline("llama-cpp", llama, 80).generate(make_request((1, 2, 3), 7), TEXT)
        assert found.output_ids == [5, 6, 7, 5, 6, 7, 5]
        assert (found.steps, found.draft_tokens, found.accepted_tokens) == (steps, drafted, 7 - steps)
        assert sum(found.acceptance_lengths) == 7
        assert (llama.num_resets, llama.passes[0]) == (1, [1, 2, 3])
        assert found.finish_reason == "length"
        assert 0 < found.ttft_s <= found.seconds


def test_outputs_end_at_an_end_token_or_where_the_engine_is_full() -> None:
    baseline = LlamaCppBaseline("llama-cpp", StandIn(False), 8)
    ended = baseline.generate(make_request((1, 2, 3), 7, end_ids=frozenset({7})), TEXT)
    assert (ended.output_ids, ended.finish_reason) == ([5, 6, 7], "end_token")
    assert len(baseline.generate(make_request((1, 2, 3), 70), TEXT).output_ids) == 5


def test_what_is_missing_is_said_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"lookahead-pipeline\[llama-cpp\]"):
        check_llama_cpp(model("smollm2-135m"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    check_llama_cpp(model("smollm2-135m"))
    with pytest.raises(UserError, match="runs GGUF files, and tiny-random-llama comes from random weights"):
        check_llama_cpp(model("tiny-random-llama"))


def test_prompt_lookup_has_room_for_the_logits_of_long_prompts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    options: list[dict[str, Any]] = []
    drafts = SimpleNamespace(LlamaPromptLookupDecoding=lambda size, count: (size, count))
    monkeypatch.setitem(sys.modules, "llama_cpp", SimpleNamespace(Llama=lambda path, **kwargs: options.append(kwargs)))
    monkeypatch.setitem(sys.modules, "llama_cpp.llama_speculative", drafts)
    checkpoint = SimpleNamespace(folder=tmp_path, gguf_file="model.gguf")
    monkeypatch.setattr(llama_cpp, "fetch", lambda model, cache_dir: checkpoint)
    load_llama_cpp(LLAMA_CPP_BASELINES, model("smollm2-135m"), tmp_path, 2048, 2)
    # llama-cpp-python keeps the logits of 512 tokens without this option.
    assert [(each["draft_model"] is not None, each["logits_all"]) for each in options] == [(False, False), (True, True)]
