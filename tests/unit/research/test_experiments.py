"""Experiments: draft lengths, memory, sizes of the lookahead window, and ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from lookahead_research.experiment_plots import plot_capacity, plot_compression, plot_lengths, plot_ranks
from lookahead_research.experiments import by_capacity, by_length, by_lookahead_sizes, by_ranks
from lookahead_research.known_outputs import ReplayRow

from pipeline.config.schema import LookaheadConfig
from pipeline.decoding.request import GenerationRequest
from pipeline.engine.contract import EngineLimits
from pipeline.errors import UserError
from tests.fakes import VOCAB_SIZE, TableEngine, plain_decode


def repeating_row(seed: int) -> ReplayRow:
    random = np.random.default_rng(seed)
    phrases = random.integers(0, 50, (3, 6))
    text = np.concatenate([phrases[index] for index in random.integers(0, 3, 20)]).astype(np.int32)
    return ReplayRow("d", "t", text[:40], text[40:])


ROWS = [repeating_row(seed) for seed in range(3)]
ONE_RANK = LookaheadConfig.of(3, 3, 3)


def sizes(*values: tuple[int, int, int]) -> list[LookaheadConfig]:
    return [LookaheadConfig.of(w, n, g) for w, n, g in values]


def test_longer_drafts_are_accepted_further_and_every_row_is_counted(tmp_path: Path) -> None:
    seen: list[int] = []
    found = by_length(ROWS, "decoding_length", [1, 8], 0, lambda: seen.append(1))
    assert [(row["retrieval"], row["decoding_length"]) for row in found] == [
        (retrieval, length) for retrieval in ("hierarchical", "parallel", "single") for length in (1, 8)
    ]
    assert len(seen) == len(found) * len(ROWS)
    for short, long in zip(found[::2], found[1::2], strict=True):
        assert 1 < short["acceptance_length"] <= 2 < long["acceptance_length"]
    plot_lengths(tmp_path / "a.png", found, "decoding_length", "decoding length")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_a_branch_bounds_what_a_step_accepts() -> None:
    found = by_length(ROWS, "branch_length", [1, 4], 16, lambda: None)
    assert all(row["acceptance_length"] <= 1 + row["branch_length"] for row in found)


def test_the_trie_keeps_to_its_bytes(tmp_path: Path) -> None:
    found = by_capacity(ROWS, [1 << 16, 1 << 20], 8, lambda: None)
    assert [row["max_bytes"] for row in found] == [1 << 16, 1 << 20]
    assert all(row["used_bytes"] <= row["max_bytes"] for row in found)
    assert found[1]["tokens_held"] >= found[0]["tokens_held"]
    assert found[0]["tokens_inserted"] == 3 * 120
    plot_capacity(tmp_path / "b.png", found)
    assert (tmp_path / "b.png").stat().st_size > 0


def known_rows() -> list[ReplayRow]:
    prompts = [np.asarray(prompt, np.int32) for prompt in ([1, 2, 3], [4, 5, 4, 5])]
    return [
        ReplayRow("d", "t", prompt, np.asarray(plain_decode(GenerationRequest("r", prompt, 40)), np.int32))
        for prompt in prompts
    ]


def test_lookahead_sizes_take_fewer_steps_for_more_arithmetic_and_the_same_text(tmp_path: Path) -> None:
    rows = known_rows()
    seen: list[int] = []
    found = list(by_lookahead_sizes(rows, TableEngine(), sizes((1, 1, 0), (5, 4, 5)), 64, lambda: seen.append(1)))
    assert len(seen) == 4
    assert [row["flops_multiple"] for row in found] == [1, 30]
    assert all(row["identical"] == row["outputs"] == 2 and row["tokens"] == 80 for row in found)
    assert found[0]["steps"] == 80
    assert found[1]["steps"] < 80
    plot_compression(tmp_path / "c.png", found)
    assert (tmp_path / "c.png").stat().st_size > 0


def test_sizes_beyond_the_engine_are_refused_before_anything_runs() -> None:
    engine = TableEngine()
    with pytest.raises(UserError, match=r"drafts 119 tokens per step; the engine verifies at most 64"):
        next(by_lookahead_sizes(known_rows(), engine, sizes((2, 2, 1), (15, 5, 15)), 64, lambda: None))
    assert engine.num_passes == 0


def test_more_ranks_take_fewer_steps_and_each_computes_less_than_all(tmp_path: Path) -> None:
    engine = TableEngine(EngineLimits(4, 256, 256, 128, VOCAB_SIZE))
    done: list[int] = []
    found = list(by_ranks(known_rows(), engine, ONE_RANK, [1, 2, 4], 64, lambda: done.append(1)))
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
        next(by_ranks(known_rows(), TableEngine(), ONE_RANK, [1, 8], 64, lambda: None))
