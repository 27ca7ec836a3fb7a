"""Comparison through a server alone, against an engine that keeps TensorRT-LLM's rules."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.bench.in_process import codec_of
from pipeline.bench.measure import MeasureOptions
from pipeline.bench.verify import is_lossless
from pipeline.bench.verify_remote import judging_config, remote_strategies, verify_remote
from pipeline.bench.workload import DEFAULT_PROMPTS, first_prompts, load_workload
from pipeline.config.places import places
from pipeline.config.resolution import resolve_config
from pipeline.config.schema import Dtype
from pipeline.engine.build import build_engine
from pipeline.engine.contract import Engine
from pipeline.engine.torch.load import load_engine
from pipeline.serving.road import launch, prepare

pytestmark = [pytest.mark.triton, pytest.mark.slow]

OVERRIDES = (
    "backend=torch",
    "device=cpu",
    "engine.strict_tensorrt_llm=true",
    "tensorrt_llm.speculation=trie",
    *(f"server.{name}_port=0" for name in ("http", "grpc", "metrics")),
)


def test_trie_drafts_change_nothing(tmp_path: Path) -> None:
    where = replace(places(), engines=tmp_path / "engines", cache=tmp_path / "cache")
    served = prepare(resolve_config("tiny-random-llama", "latency", OVERRIDES, where=where), where)
    resolved, codec = served.resolved, codec_of(served.artifact)
    prompts = first_prompts(codec.tokenizer, load_workload(DEFAULT_PROMPTS, 3), raw=True)
    options = MeasureOptions(max_new_tokens=12, end_ids=codec.end_ids)

    def judge() -> tuple[Engine, Dtype]:
        return load_engine(build_engine(judging_config(resolved, has_cuda=False), where).artifact), "float32"

    strategies = remote_strategies(resolved, None)
    assert strategies == ["none", "trie"]
    running = launch(served, where, tmp_path / "run")
    try:
        comparisons = verify_remote(running.state.grpc_url, judge, strategies, prompts, options)
        assert is_lossless(comparisons)
        assert {c.verdict for c in comparisons} == {"identical"}
        assert len(comparisons) == 3 + 6
    finally:
        running.stop()
