"""Lookahead parallelism with real processes and torch.distributed: the same tokens as one process."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.config.folders import Folders, folders
from pipeline.config.hardware import Hardware
from pipeline.config.resolution import resolve_config
from pipeline.config.schema import ResolvedConfig
from pipeline.decoding.request import SamplingParams
from pipeline.engine.artifact import Artifact
from pipeline.engine.contract import VerifyItem
from pipeline.engine.cost_curve import cost_curve_path, load_cost_curve
from pipeline.engine.parallel import ParallelEngine
from pipeline.engine.scheduler_factory import create_scheduler
from pipeline.engine.submission import Submission
from pipeline.engine.torch.load import load_engine
from pipeline.errors import BuildError, EngineError, ServerError
from pipeline.server.startup import prepare
from pipeline.tuning.planned_engine import MEASURING, planned_engine
from tests.fakes import make_request
from tests.own_folders import own_folders
from tests.patience import PATIENCE_S

# Builds and processes of two engines take five minutes on a busy machine.
pytestmark = pytest.mark.timeout(4 * PATIENCE_S)
CPU = Hardware(gpu=None, compute_capability=0, has_tensorrt_llm=False)


def tiny(*overrides: str) -> ResolvedConfig:
    return resolve_config(
        "tiny-random-llama", "latency", ("drafting.planner=fixed", *overrides), where=folders({}), hardware=CPU
    )


def generate(artifact: Artifact) -> tuple[list[list[int]], list[int]]:
    """Outputs and steps of requests that mix strategies and samplings."""
    engine = load_engine(artifact)
    scheduler = create_scheduler(artifact, engine)
    random = np.random.default_rng(0)
    submissions = [
        Submission(make_request(random.integers(0, 256, 20 + index).tolist(), 40, sampling=sampling), strategy)
        for index, (strategy, sampling) in enumerate(
            [
                ("lookahead", SamplingParams()),
                ("hybrid", SamplingParams()),
                ("none", SamplingParams()),
                ("lookahead", SamplingParams(temperature=0.8, top_p=0.9, seed=3)),
                ("hybrid", SamplingParams(temperature=1.0, repetition_penalty=1.2, seed=4)),
            ]
        )
    ]
    results = scheduler.run(submissions)
    if isinstance(engine, ParallelEngine):
        engine.close()
        engine.close()
    return [result.output_ids for result in results], [result.statistics.num_steps for result in results]


def test_two_processes_give_the_tokens_and_steps_of_one(where: Folders) -> None:
    one = generate(planned_engine(tiny(), where).artifact)
    result = planned_engine(tiny("engine.lookahead_parallel=2"), where)
    assert result.outcome == "updated"  # no new build: the engine does not depend on it
    assert generate(result.artifact) == one
    assert min(one[1]) < 40


def test_a_model_spread_over_two_processes_gives_the_same_tokens(where: Folders) -> None:
    one = generate(planned_engine(tiny(), where).artifact)
    result = planned_engine(tiny("model.parallelism.tensor=2"), where)
    assert result.outcome == "built"  # by transformers' modelling code: the lean pass runs in one process
    # Steps may differ: its probabilities, by which drafts are chosen, are rounded otherwise.
    assert generate(result.artifact)[0] == one[0]


def test_each_number_of_processes_has_a_curve_of_its_own_and_leaves_the_engine_to_be_loaded(where: Folders) -> None:
    def planned(*overrides: str) -> Artifact:
        return planned_engine(tiny("drafting.planner=adaptive", *overrides), where, note=notes.append).artifact

    notes: list[str] = []
    threads = torch.get_num_threads()
    plain = planned()
    notes.clear()
    parallel, again = (planned("engine.lookahead_parallel=2") for _ in range(2))

    assert notes.count(MEASURING) == 1
    assert cost_curve_path(plain) != cost_curve_path(parallel)
    assert load_cost_curve(plain) != load_cost_curve(parallel)
    assert torch.get_num_threads() == threads
    engine = load_engine(again)
    assert isinstance(engine, ParallelEngine)
    engine.close()


def test_a_model_without_a_plan_is_not_spread(where: Folders) -> None:
    with pytest.raises(BuildError, match="there is none for OPTForCausalLM"):
        planned_engine(tiny("model.parallelism.tensor=2", "model.architecture=OPTForCausalLM"), where)


def test_too_few_devices_are_said_before_a_process_is_started(where: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = planned_engine(tiny("engine.lookahead_parallel=2"), where).artifact
    cuda = artifact.resolved.model_copy(update={"device": "cuda"})
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    with pytest.raises(BuildError, match=r"needs as many CUDA devices; this machine has 1\. Lower it"):
        load_engine(Artifact(artifact.folder, artifact.manifest, cuda))


def test_heads_that_cannot_be_shared_out_are_said_before_a_process_is_started(
    where: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.engine.torch.ranks._start_followers", None)
    with pytest.raises(BuildError, match=r"tensor = 3 does not divide the 2 key/value heads of tiny-random-llama"):
        load_engine(planned_engine(tiny("model.parallelism.tensor=3"), where).artifact)


def test_ctrl_c_is_the_leaders_affair_and_a_lost_process_one_sentence(
    where: Folders, capfd: pytest.CaptureFixture[str]
) -> None:
    engine = load_engine(planned_engine(tiny("engine.lookahead_parallel=3"), where).artifact)
    assert isinstance(engine, ParallelEngine)
    followers = multiprocessing.active_children()
    sequence = engine.open(np.arange(5, dtype=np.int32))
    for follower in followers:
        os.kill(follower.pid or 0, signal.SIGINT)
    engine.verify([VerifyItem(sequence)])
    victim = next(follower for follower in followers if follower.name == "rank-2")
    victim.kill()
    victim.join()
    engine.commit(sequence, [], [7])
    with pytest.raises(EngineError, match=r"Process rank-2 of engine\.lookahead_parallel = 3 has ended .*exit code -9"):
        engine.verify([VerifyItem(sequence)])
    engine.close()
    assert not any(follower.is_alive() for follower in followers)
    assert "Traceback" not in capfd.readouterr().err


def test_what_a_process_refuses_is_said_once(
    where: Folders, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    artifact = planned_engine(tiny("engine.lookahead_parallel=2"), where).artifact
    from pipeline.engine.torch import ranks

    whole = ranks.load_rank(artifact, 0, 1)
    monkeypatch.setattr(ranks, "load_rank", lambda artifact, rank, num_threads: whole)
    too_long = artifact.resolved.with_settings("engine", max_seq_len=1 << 40)
    with pytest.raises(BuildError, match="A KV cache of"):
        load_engine(Artifact(artifact.folder, artifact.manifest, too_long))
    assert "Traceback" not in capfd.readouterr().err


def test_a_server_refuses_it(where: Folders) -> None:
    with pytest.raises(ServerError, match=r"lookahead_parallel = 2 runs in process only"):
        prepare(tiny("engine.lookahead_parallel=2"), where)
    with pytest.raises(ServerError, match=r"tensor = 2 of the torch backend runs in process only"):
        prepare(tiny("model.parallelism.tensor=2"), where)


def test_a_process_that_does_not_come_up_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    artifact = planned_engine(
        tiny("engine.lookahead_parallel=2", "model.dtype=float16"), own_folders(tmp_path)
    ).artifact
    from pipeline.engine.torch import ranks

    whole = ranks.load_rank(artifact, 0, 1)
    monkeypatch.setattr(ranks, "load_rank", lambda artifact, rank, num_threads: whole)
    for path in artifact.engine_dir.glob("*.safetensors"):
        path.unlink()
    with pytest.raises(BuildError, match=r"Process rank-1 of engine\.lookahead_parallel = 2 ended while it loaded"):
        load_engine(artifact)
    assert "Error" in capfd.readouterr().err
