"""Comparison of strategies of one server, with literal responses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipeline.bench.data.workload import NamedPrompt, Prompt
from pipeline.bench.measure import MeasureOptions
from pipeline.bench.verify import remote as module
from pipeline.bench.verify.remote import judging_config, remote_strategies, verify_remote, without_end
from pipeline.bench.verify.verify import EPSILON, is_lossless
from pipeline.errors import UserError
from pipeline.server.client import Completion, TextQuery
from tests.trt_configs import trt_config

PROMPTS = [NamedPrompt(name, np.asarray([1, 2], np.int32), Prompt((name,), True)) for name in ("a", "b")]
END = 9


def answer_with(outputs: dict[str, list[int]]) -> Any:
    """A server with `side_channel_safe`: its output by strategy, after the prompt's own letter."""

    def complete(query: TextQuery, url: str, protocol: str, timeout_s: float) -> Completion:
        tokens = [ord(query.text_input), *outputs[str(query.strategy)]]
        return Completion("", "length", {"prompt_ids": [1, 2], "output_ids": tokens}, 0.1)

    return complete


class Judge:
    """Scores by token; counts how often it was needed."""

    def __init__(self, scores: dict[int, float]) -> None:
        self.calls, self._scores = 0, scores

    def __call__(self) -> tuple[Any, float]:
        self.calls += 1
        row = np.full(256, -50.0, np.float32)
        for token, score in self._scores.items():
            row[token] = score
        sequence = SimpleNamespace(num_pending=1)
        engine = SimpleNamespace(
            open=lambda context: sequence,
            limits=SimpleNamespace(max_num_tokens=100),
            verify=lambda items: [SimpleNamespace(row=lambda index: row)],
            release=lambda sequence: None,
        )
        return engine, EPSILON["float16"]


def run(monkeypatch: pytest.MonkeyPatch, outputs: dict[str, list[int]], judge: Judge) -> list[Any]:
    monkeypatch.setattr(module, "complete", answer_with(outputs))
    options = MeasureOptions(max_new_tokens=8, end_ids=frozenset({END}))
    return verify_remote("h:1", judge, list(outputs), PROMPTS, options)[0]  # type: ignore[arg-type]


def test_equal_outputs_need_no_judge(monkeypatch):
    judge = Judge({})
    outputs = {"none": [3, 4, 5], "lookahead": [3, 4, 5], "trie": [3, 4, 5]}
    found = run(monkeypatch, outputs, judge)
    assert {comparison.verdict for comparison in found} == {"identical"}
    assert len(found) == 2 * 2 + 3 * 2  # alone without the reference, then all at once
    assert judge.calls == 0


def test_an_end_token_that_only_one_of_them_shows_is_no_difference(monkeypatch):
    found = run(monkeypatch, {"none": [3, 4, END], "trie": [3, 4]}, Judge({}))
    assert is_lossless(found)
    assert without_end([1, END, 2], {END}) == [1]


@pytest.mark.parametrize(("other", "verdict"), [(9.999, "near_tie"), (8.0, "different")])
def test_a_difference_is_judged_by_scores(monkeypatch, other, verdict):
    judge = Judge({4: 10.0, 6: other})
    found = run(monkeypatch, {"none": [3, 4, 5], "trie": [3, 6, 5]}, judge)
    wrong = [comparison for comparison in found if comparison.strategy == "trie"]
    assert {comparison.verdict for comparison in wrong} == {verdict}
    assert {comparison.position for comparison in wrong} == {2}
    assert judge.calls == len(wrong)


def test_strategies_are_those_of_the_engine():
    both = trt_config("llama2-13b", "latency", ".speculation=both")
    assert remote_strategies(both, None) == ["none", "lookahead", "trie"]
    assert remote_strategies(both, ["trie"]) == ["none", "trie"]
    assert remote_strategies(both, ["trie", "none", "lookahead"]) == ["none", "trie", "lookahead"]
    trie = trt_config("llama2-13b", "latency", ".speculation=trie")
    assert remote_strategies(trie, None) == ["none", "trie"]
    with pytest.raises(UserError, match="no strategy 'lookahead' on this engine; it offers none, trie"):
        remote_strategies(trie, ["trie", "lookahead"])
    with pytest.raises(UserError, match="speculation=both"):
        remote_strategies(trt_config("llama2-13b", "throughput"), None)


@pytest.mark.parametrize(("has_cuda", "device"), [(True, "cuda"), (False, "cpu")])
def test_the_judge_is_another_engine_of_the_same_model(has_cuda, device):
    config = trt_config("llama2-13b", "latency")
    judge = judging_config(config, has_cuda)
    assert (judge.backend, judge.device, judge.dtype) == ("torch", device, config.dtype)
    assert judge.profile.name == "latency-judge"
    assert judge.model == config.model
