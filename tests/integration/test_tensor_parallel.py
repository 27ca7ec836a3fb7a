"""Tensor parallelism over two processes for every supported family: trees and commits as in plain passes."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from tests.integration.one_of_two import PLANNED, one_of_two
from tests.patience import PATIENCE_S
from tests.unit.engine.torch.test_architectures import tiny_model


@pytest.mark.slow
def test_two_processes_compute_what_one_does(tmp_path: Path) -> None:
    for name in PLANNED:
        tiny_model(name).float().save_pretrained(tmp_path / name)
    meeting = tmp_path / "meeting"
    context = multiprocessing.get_context("spawn")
    lines = [context.Pipe() for _ in range(2)]
    processes = [
        context.Process(target=one_of_two, args=(rank, meeting, tmp_path, theirs), daemon=True)
        for rank, (_, theirs) in enumerate(lines)
    ]
    for process in processes:
        process.start()
    for mine, theirs in lines:
        theirs.close()
        for name in PLANNED:
            assert mine.poll(PATIENCE_S), "a process hangs"
            found, difference = mine.recv()
            assert (found, difference < 1e-4) == (name, True), (found, difference)
    for process in processes:
        process.join(timeout=PATIENCE_S)
        assert process.exitcode == 0
    assert len(PLANNED) >= 25  # older releases of transformers have fewer plans
