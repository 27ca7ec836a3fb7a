"""The processes of lookahead and of tensor parallelism and the line between them: torch.distributed, with gloo on the
CPU and NCCL on CUDA devices, one per process."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import socket
from collections.abc import Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import distributed

from pipeline.config.schema import Device
from pipeline.decoding.tree import FloatArray
from pipeline.engine.artifact import Artifact
from pipeline.engine.parallel import ParallelEngine, whole_tree
from pipeline.engine.rank import Order, Rank, follow
from pipeline.engine.torch.load import load_rank
from pipeline.errors import BuildError

# A follower waits in a collective operation for the next step, which may come after any time.
_FOREVER = timedelta(days=1000)


class DistributedLeader:
    """Rank 0's end of the line. See `pipeline.engine.parallel.Leader`."""

    def __init__(self, device: torch.device, followers: Sequence[BaseProcess]) -> None:
        self._device = device
        self._followers = followers
        self._closed = False
        atexit.register(self.close)

    @property
    def num_ranks(self) -> int:
        return len(self._followers) + 1

    def tell(self, orders: Sequence[Order]) -> None:
        distributed.broadcast_object_list([list(orders)], src=0, device=self._device)

    def collect_ints(self, mine: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        return self._sum(mine)

    def collect_floats(self, mine: FloatArray) -> FloatArray:
        return self._sum(mine)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        if all(process.is_alive() for process in self._followers):
            distributed.broadcast_object_list([None], src=0, device=self._device)
        for process in self._followers:
            process.join(timeout=10)
            process.terminate()
        distributed.destroy_process_group()

    def _sum(self, mine: npt.NDArray[Any]) -> npt.NDArray[Any]:
        total = torch.from_numpy(mine.copy()).to(self._device)
        distributed.reduce(total, dst=0)
        result: npt.NDArray[Any] = total.cpu().numpy()
        return result


class DistributedFollower:
    """Another rank's end. See `pipeline.engine.rank.Follower`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def hear(self) -> list[Order] | None:
        heard: list[list[Order] | None] = [None]
        distributed.broadcast_object_list(heard, src=0, device=self._device)
        return heard[0]

    def give(self, mine: npt.NDArray[Any]) -> None:
        distributed.reduce(torch.from_numpy(mine.copy()).to(self._device), dst=0)


def start_ranks(artifact: Artifact) -> ParallelEngine:
    """Load the model in this process and in as many new ones as the settings ask for. Raises BuildError if there are
    too few CUDA devices or a process does not come up."""
    device, shards = artifact.resolved.device, artifact.resolved.model.parallelism.tensor
    num_ranks = max(shards, artifact.resolved.profile.engine.lookahead_parallel)
    setting = "engine.lookahead_parallel" if shards == 1 else "model.parallelism.tensor"
    if device == "cuda" and torch.cuda.device_count() < num_ranks:
        raise BuildError(f"{setting} = {num_ranks} needs as many CUDA devices; {torch.cuda.device_count()} are here.")
    # On a CPU the ranks share its cores.
    num_threads = max(1, torch.get_num_threads() // num_ranks)
    context = multiprocessing.get_context("spawn")
    port = _free_port()
    started: list[tuple[BaseProcess, Connection]] = []
    for rank in range(1, num_ranks):
        mine, theirs = context.Pipe()
        arguments = (artifact, rank, num_ranks, port, num_threads, theirs)
        process: BaseProcess = context.Process(target=_follower, args=arguments, name=f"rank-{rank}", daemon=True)
        process.start()
        theirs.close()
        started.append((process, mine))
    if device == "cpu":
        torch.set_num_threads(num_threads)
    followers = [process for process, _ in started]
    engine = None if shards > 1 else load_rank(artifact)
    for process, mine in started:
        _await_ready(process, mine, followers, setting)
    leader = DistributedLeader(_join(device, 0, num_ranks, port), followers)
    if engine is not None:
        return ParallelEngine(engine, leader)
    return ParallelEngine(load_rank(artifact), leader, whole_tree)


def _await_ready(process: BaseProcess, line: Connection, followers: Sequence[BaseProcess], setting: str) -> None:
    try:
        line.recv()
    except EOFError as error:
        for follower in followers:
            follower.terminate()
        process.join()
        raise BuildError(
            f"Process {process.name} of {setting} = {len(followers) + 1} ended while it loaded the "
            f"model (exit code {process.exitcode}); its own message stands above. Is there memory for so many copies?"
        ) from error


def _follower(artifact: Artifact, rank: int, num_ranks: int, port: int, num_threads: int, ready: Connection) -> None:
    torch.set_num_threads(num_threads)
    # A model that is spread over the ranks is loaded by all of them together.
    engine = None if artifact.resolved.model.parallelism.tensor > 1 else load_rank(artifact, rank)
    ready.send(True)
    device = _join(artifact.resolved.device, rank, num_ranks, port)
    engine = engine or load_rank(artifact, rank)
    follow(Rank(engine, rank), DistributedFollower(device))
    distributed.destroy_process_group()


def _join(device: Device, rank: int, num_ranks: int, port: int) -> torch.device:
    os.environ["LOCAL_RANK"] = str(rank)  # by which transformers chooses the device of a shard
    if device == "cuda":
        torch.cuda.set_device(rank)
    distributed.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=num_ranks,
        timeout=_FOREVER,
    )
    return torch.device("cuda", rank) if device == "cuda" else torch.device("cpu")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
