"""Learned state survives a restart and a switch to another profile."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config.resolution import resolve_config
from pipeline.server.startup import prepare
from tests.integration.servers import TORCH, ask, running
from tests.own_folders import own_folders

pytestmark = pytest.mark.slow


def test_a_server_of_another_profile_goes_on_with_what_was_learnt(tmp_path: Path) -> None:
    where = own_folders(tmp_path / "folders")
    keep = (*TORCH, "drafting.keep_learned_minutes=60", "drafting.planner=fixed")
    steps = []
    for number, profile in enumerate(("latency", "balanced")):
        served = prepare(resolve_config("tiny-random-llama", profile, keep, where=where), where)
        with running(served, where, tmp_path / f"run {number}") as server:
            answer = ask(server, strategy="hybrid")
            plain = ask(server, strategy="none")
        assert answer.text == plain.text
        assert answer.statistics is not None
        steps.append(answer.statistics["num_steps"])
    (folder,) = (where.cache / "learned").iterdir()
    assert {path.name for path in folder.iterdir() if not path.name.startswith(".")} == {
        "bls.state", "engine.state", "recycling.state", "trie.snapshot", "trie.state"
    }  # fmt: skip
    assert steps[1] < steps[0]
