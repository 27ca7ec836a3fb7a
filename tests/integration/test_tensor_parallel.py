"""Every family that transformers can spread over ranks, over two processes: trees and commits as with plain passes."""

from __future__ import annotations

import multiprocessing
import os
import socket
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
import transformers
from torch import distributed
from transformers import AutoModelForCausalLM
from transformers.distributed import DistributedConfig

from pipeline.checkpoint.architectures import SUPPORTED_ARCHITECTURES
from pipeline.engine.torch.engine import TorchEngine
from pipeline.engine.torch.load_transformers import head_shards
from tests.patience import PATIENCE_S
from tests.unit.engine.torch.plain_passes import worst_difference
from tests.unit.engine.torch.test_architectures import LIMITS, tiny_model

PLANNED = [name for name in SUPPORTED_ARCHITECTURES if getattr(transformers, name).config_class.base_model_tp_plan]


def spread_engine(folder: Path) -> TorchEngine:
    spread = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, distributed_config=DistributedConfig(tp_size=2, tp_plan="auto")
    )
    return TorchEngine(spread, LIMITS, num_shards=head_shards(spread.config, 2))


def one_of_two(rank: int, port: int, folder: Path, results: Connection) -> None:
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
    for name in PLANNED:
        results.send((name, worst_difference(spread_engine(folder / name), tiny_model(name).float())))
    distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes_compute_what_one_does(tmp_path: Path) -> None:
    for name in PLANNED:
        tiny_model(name).float().save_pretrained(tmp_path / name)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    lines = [context.Pipe() for _ in range(2)]
    processes = [
        context.Process(target=one_of_two, args=(rank, port, tmp_path, theirs), daemon=True)
        for rank, (_, theirs) in enumerate(lines)
    ]
    for process in processes:
        process.start()
    for mine, theirs in lines:
        theirs.close()
        for name in PLANNED:
            assert mine.poll(120), "a process hangs"
            found, difference = mine.recv()
            assert (found, difference < 1e-4) == (name, True), (found, difference)
    for process in processes:
        process.join(timeout=PATIENCE_S)
        assert process.exitcode == 0
    assert len(PLANNED) >= 25  # older releases of transformers have fewer plans
