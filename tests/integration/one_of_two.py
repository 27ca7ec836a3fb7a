"""One of two processes of a tensor-parallel model. A module, so that processes can import it by name."""

from __future__ import annotations

import os
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import transformers
from torch import distributed
from transformers import AutoModelForCausalLM
from transformers.distributed import DistributedConfig

from pipeline.checkpoint.architectures import SUPPORTED_ARCHITECTURES
from pipeline.engine.torch.engine import TorchEngine
from pipeline.engine.torch.load_transformers import head_shards
from tests.unit.engine.torch.plain_passes import worst_difference
from tests.unit.engine.torch.test_architectures import LIMITS, tiny_model

PLANNED = [name for name in SUPPORTED_ARCHITECTURES if getattr(transformers, name).config_class.base_model_tp_plan]


def spread_engine(folder: Path) -> TorchEngine:
    spread = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, distributed_config=DistributedConfig(tp_size=2, tp_plan="auto")
    )
    return TorchEngine(spread, LIMITS, num_shards=head_shards(spread.config, 2))


def one_of_two(rank: int, meeting: Path, folder: Path, results: Connection) -> None:
    """meeting: a file over which the processes find each other. Another program could take a port chosen here."""
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    distributed.init_process_group("gloo", init_method=meeting.as_uri(), rank=rank, world_size=2)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
    for name in PLANNED:
        results.send((name, worst_difference(spread_engine(folder / name), tiny_model(name).float())))
    distributed.destroy_process_group()
