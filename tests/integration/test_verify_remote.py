"""`verify` through a server, against an engine with TensorRT-LLM's rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.bench.contenders.in_process import codec_of
from pipeline.bench.data.workload import DEFAULT_PROMPTS, first_prompts, load_workload
from pipeline.bench.measure import MeasureOptions
from pipeline.bench.verify.reference import LEAST_AGREEMENT, agreement, load_reference
from pipeline.bench.verify.remote import judging_config, remote_strategies, verify_remote
from pipeline.bench.verify.verify import is_lossless
from pipeline.engine.build import build_engine
from pipeline.engine.contract import Engine
from pipeline.engine.torch.load import load_engine
from tests.integration.servers import prepared, running
from tests.own_folders import own_folders

pytestmark = [pytest.mark.triton, pytest.mark.slow]


def test_trie_drafts_change_nothing(tmp_path: Path) -> None:
    where = own_folders(tmp_path)
    settings = ("engine.strict_tensorrt_llm=true", "tensorrt_llm.speculation=trie", "drafting.planner=fixed")
    served = prepared(where, *settings)
    resolved, codec = served.resolved, codec_of(served.artifact)
    prompts = first_prompts(codec, load_workload(DEFAULT_PROMPTS, 3), raw=True)
    options = MeasureOptions(max_new_tokens=12, end_ids=codec.end_ids)

    def judge() -> tuple[Engine, float]:
        return load_engine(build_engine(judging_config(resolved, has_cuda=False), where).artifact), 0.0

    strategies = remote_strategies(resolved, None)
    assert strategies == ["none", "trie"]
    with running(served, where, tmp_path / "run") as server:
        comparisons, outputs = verify_remote(server.state.grpc_url, judge, strategies, prompts, options)
        assert is_lossless(comparisons)
        assert {c.verdict for c in comparisons} == {"identical"}
        assert len(comparisons) == 3 + 6
    found = [(prompt.prompt_ids, outputs[prompt.prompt_id]) for prompt in prompts]
    assert agreement(load_reference(resolved, where), found) >= LEAST_AGREEMENT
