"""The experiment with lookahead parallelism: steps and tokens per rank."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from lookahead_research.experiment_plots import plot_ranks
from lookahead_research.experiments import by_ranks
from lookahead_research.known_outputs import ReplayRow

from pipeline.config.schema import LookaheadConfig
from pipeline.decoding.request import GenerationRequest
from pipeline.engine.contract import EngineLimits
from pipeline.errors import UserError
from tests.fakes import VOCAB_SIZE, TableEngine, plain_decode

ONE = LookaheadConfig.of(3, 3, 3)


def rows() -> list[ReplayRow]:
    found = []
    for prompt in ([1, 2, 3], [4, 5, 4, 5]):
        ids = np.asarray(prompt, np.int32)
        output = plain_decode(GenerationRequest("r", ids, max_new_tokens=40))
        found.append(ReplayRow("d", "t", ids, np.asarray(output, np.int32)))
    return found


def test_more_ranks_take_fewer_steps_and_each_computes_less_than_all(tmp_path: Path) -> None:
    engine = TableEngine(EngineLimits(4, 256, 256, 128, VOCAB_SIZE))
    done: list[int] = []
    found = list(by_ranks(rows(), engine, ONE, [1, 2, 4], 64, lambda: done.append(1)))
    assert [row["ranks"] for row in found] == [1, 2, 4]
    assert [row["max_window_size"] for row in found] == [3, 6, 12]
    assert [row["max_verification_set_size"] for row in found] == [3, 6, 12]
    assert all(row["identical"] == row["outputs"] == 2 for row in found)
    assert len(done) == 6
    assert found[0]["tokens_per_rank"] == found[0]["tokens_per_step"]
    for row in found[1:]:
        assert row["tokens_per_step"] / row["ranks"] <= row["tokens_per_rank"] < row["tokens_per_step"]
    assert found[2]["steps"] <= found[0]["steps"]
    plot_ranks(tmp_path / "ranks.png", found)
    assert (tmp_path / "ranks.png").read_bytes().startswith(b"\x89PNG")


def test_more_than_the_engine_verifies_is_refused_before_anything_runs() -> None:
    with pytest.raises(UserError, match=r"drafts 95 tokens per step.*at most 64"):
        next(by_ranks(rows(), TableEngine(), ONE, [1, 8], 64, lambda: None))
