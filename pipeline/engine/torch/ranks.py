"""The processes of lookahead and tensor parallelism. The leader has a pipe to each follower. torch.distributed connects
the shards of a tensor-parallel model: gloo on the CPU, NCCL on CUDA devices, one device per process."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch import distributed
from torch.distributed import TCPStore
from transformers import AutoConfig

from pipeline.checkpoint.model_config import kv_heads
from pipeline.config import threads
from pipeline.config.schema import Device
from pipeline.decoding.split import split_tree
from pipeline.engine.artifact import Artifact
from pipeline.engine.parallel import ParallelEngine, whole_tree
from pipeline.engine.rank import Order, Rank, follow
from pipeline.engine.torch.load import load_rank
from pipeline.errors import BuildError, EngineError, UserError

# Timeout of collective operations, in which a shard waits for the next pass.
_FOREVER = timedelta(days=1000)
# Time limit for a process to end after its connection has broken.
_ENDING_S = 10.0


class PipeLeader:
    """Implements `pipeline.engine.parallel.Leader` over pipes. Owns the follower processes and ends them with `close`,
    at the latest at the end of this process."""

    def __init__(self, followers: Sequence[tuple[BaseProcess, Connection]], setting: str) -> None:
        """setting: name of the setting that asks for several ranks, for messages."""
        self._processes = [process for process, _ in followers]
        self._connections = [connection for _, connection in followers]
        self._setting = setting
        self._num_threads = torch.get_num_threads()
        atexit.register(self.close)

    @property
    def num_ranks(self) -> int:
        return len(self._connections) + 1

    def send(self, orders: Sequence[Order]) -> None:
        with self._reporting_losses():
            for connection in self._connections:
                connection.send(orders)

    def collect(self, mine: Any) -> list[Any]:
        with self._reporting_losses():
            return [mine, *(connection.recv() for connection in self._connections)]

    def close(self) -> None:
        atexit.unregister(self.close)
        for connection in self._connections:
            connection.close()  # makes the follower end
        for process in self._processes:
            process.join(timeout=_ENDING_S)
            process.terminate()
            process.join()
        if distributed.is_initialized():
            distributed.destroy_process_group()
        torch.set_num_threads(self._num_threads)

    @contextmanager
    def _reporting_losses(self) -> Iterator[None]:
        """Raise EngineError if a connection breaks because a follower has ended."""
        try:
            yield
        except (EOFError, OSError) as error:
            wait([process.sentinel for process in self._processes], timeout=_ENDING_S)
            ended = [process for process in self._processes if process.exitcode is not None]
            if not ended:
                raise
            # A killed process has a negative exit code, unlike those that ended because of it.
            first = min(ended, key=lambda process: process.exitcode or 0)
            raise EngineError(
                f"Process {first.name} of {self._setting} = {self.num_ranks} has ended unexpectedly "
                f"(exit code {first.exitcode}), so the engine has ended. Run the command again; if the system killed "
                "the process for lack of memory, use fewer processes."
            ) from error


def start_ranks(artifact: Artifact) -> ParallelEngine:
    """Load the model in this process and in the new processes that the settings require. Raises BuildError if there are
    too few CUDA devices, the number of shards does not divide the heads, or a process fails to load."""
    device, (setting, num_ranks) = artifact.resolved.device, artifact.resolved.ranks
    is_spread = artifact.resolved.model.parallelism.tensor > 1
    if device == "cuda" and torch.cuda.device_count() < num_ranks:
        raise BuildError(
            f"{setting} = {num_ranks} needs as many CUDA devices; this machine has {torch.cuda.device_count()}. Lower "
            "it."
        )
    if is_spread:
        _check_heads(artifact, num_ranks)
    # On a CPU the ranks share the cores.
    num_threads = max(1, threads.num_threads() // num_ranks)
    # The leader's store listens before the followers start, so no other program can take its port meanwhile.
    store = _store(num_ranks) if is_spread else None
    started = _start_followers(artifact, num_ranks, 0 if store is None else store.port, num_threads)
    leader = PipeLeader(started, setting)
    try:
        if store is None:
            engine = load_rank(artifact, 0, num_threads)
            _await_ready(started, f"{setting} = {num_ranks}")
            return ParallelEngine(engine, leader, split_tree)
        _await_ready(started, f"{setting} = {num_ranks}")
        _join(device, 0, num_ranks, store)
        return ParallelEngine(load_rank(artifact, 0, num_threads), leader, whole_tree)
    except BaseException:
        leader.close()
        raise


def _check_heads(artifact: Artifact, num_shards: int) -> None:
    config = AutoConfig.from_pretrained(artifact.engine_dir, local_files_only=True)
    num_kv_heads, _ = kv_heads(config)
    if num_kv_heads % num_shards:
        raise BuildError(
            f"model.parallelism.tensor = {num_shards} does not divide the {num_kv_heads} key/value heads of "
            f"{artifact.manifest.model}; choose a number that does."
        )


def _start_followers(
    artifact: Artifact, num_ranks: int, port: int, num_threads: int
) -> list[tuple[BaseProcess, Connection]]:
    context = multiprocessing.get_context("spawn")
    started: list[tuple[BaseProcess, Connection]] = []
    with _interrupts_held_back():
        for rank in range(1, num_ranks):
            mine, theirs = context.Pipe()
            arguments = (artifact, rank, num_ranks, port, num_threads, theirs)
            process: BaseProcess = context.Process(target=_follower, args=arguments, name=f"rank-{rank}", daemon=True)
            process.start()
            theirs.close()
            started.append((process, mine))
    return started


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Make processes started in the block ignore Ctrl-C, because the leader ends them. (A process inherits the blocked
    signals of its parent.)"""
    resource_tracker.ensure_running()  # before the block, because its start unblocks the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _await_ready(followers: Sequence[tuple[BaseProcess, Connection]], setting: str) -> None:
    for process, connection in followers:
        try:
            refusal = connection.recv()
        except EOFError as error:
            process.join()
            raise BuildError(
                f"Process {process.name} of {setting} ended while it loaded the model (exit code {process.exitcode}); "
                "see its own message above. Is there enough memory for all copies?"
            ) from error
        if refusal is not None:
            raise BuildError(refusal)


def _follower(
    artifact: Artifact, rank: int, num_ranks: int, port: int, num_threads: int, connection: Connection
) -> None:
    """The main function of a follower. It ends silently with the leader."""
    try:
        # All ranks load a tensor-parallel model together, below.
        engine = None if artifact.resolved.model.parallelism.tensor > 1 else load_rank(artifact, rank, num_threads)
    except UserError as error:
        connection.send(str(error))  # the leader reports it
        return
    connection.send(None)
    if engine is None:
        _join(artifact.resolved.device, rank, num_ranks, _store(num_ranks, port))
        engine = load_rank(artifact, rank, num_threads)
    with suppress(ConnectionError):
        follow(Rank(engine, rank), connection)
    if distributed.is_initialized():
        distributed.destroy_process_group()


def _store(num_ranks: int, port: int | None = None) -> TCPStore:
    """The store over which the shards of a tensor-parallel model find each other. port: of the leader's store; None in
    the leader, whose store listens on a free port."""
    return TCPStore("127.0.0.1", port or 0, num_ranks, port is None, timeout=_FOREVER, wait_for_workers=False)


def _join(device: Device, rank: int, num_ranks: int, store: TCPStore) -> None:
    """Connect this shard of a tensor-parallel model with the others."""
    os.environ["LOCAL_RANK"] = str(rank)  # transformers reads the device of a shard from it
    if device == "cuda":
        torch.cuda.set_device(rank)
    distributed.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        store=store,
        rank=rank,
        world_size=num_ranks,
        timeout=_FOREVER,
    )
