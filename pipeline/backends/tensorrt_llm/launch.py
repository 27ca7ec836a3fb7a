"""Command line of tritonserver for one or more ranks, with the options of NVIDIA's launcher for this backend.

Leader mode: mpirun starts a server per rank; ranks above 0 load only the models with an engine. Orchestrator mode: one
server spawns a process per rank of each engine, or is rank 0 of processes that mpirun starts. It needs two environment
variables, and small memory pools if it spawns. We add three options: addresses to listen on (the launcher listens on
all), the key that Triton's interfaces require, and a prefix for shared memory, to find the leftovers of a crashed
server.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pipeline.backends.tensorrt_llm.build_context import BuildContext
from pipeline.backends.tensorrt_llm.environment import gpus
from pipeline.backends.tensorrt_llm.instance import instance_of
from pipeline.config.schema import TensorRTLLMConfig
from pipeline.engine.command import Listening
from pipeline.server.command import restricting_words
from pipeline.server.guard import DRAIN_SECONDS

CONTAINER_SERVER = "/opt/tritonserver/bin/tritonserver"


def orchestrator_variables(trt: TensorRTLLMConfig) -> dict[str, str]:
    """Additional environment variables of a server in orchestrator mode; empty in leader mode."""
    if not trt.orchestrator:
        return {}
    spawns = "1" if trt.spawn_processes else "0"
    return {"TRTLLM_ORCHESTRATOR": "1", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": spawns}


def launch_words(
    context: BuildContext,
    tritonserver: str,
    use_mpi: bool,
    repository: Path,
    listening: Listening,
    server_id: str,
    verbose_log: Path | None,
) -> tuple[str, ...]:
    """Command line that starts all ranks. repository: path that the server uses. verbose_log: for rank 0."""
    words = ["mpirun", "--allow-run-as-root"] if use_mpi else []
    for rank in range(context.num_processes):
        of_rank = [tritonserver, *_options(context, rank, repository, listening, server_id, verbose_log)]
        words += ["-n", "1", *of_rank, ":"] if use_mpi else of_rank
    return tuple(words)


def _options(
    context: BuildContext, rank: int, repository: Path, listening: Listening, server_id: str, verbose_log: Path | None
) -> Iterator[str]:
    ports = [f"--{name}-port={getattr(listening.ports, name)}" for name in ("grpc", "http", "metrics")]
    yield f"--model-repository={repository}"
    yield f"--exit-timeout-secs={DRAIN_SECONDS:.0f}"
    yield from ports
    if rank == 0 and verbose_log is not None:
        yield from ("--log-verbose=3", f"--log-file={verbose_log}")
    if rank > 0:
        engines = (instance_of(context, index).triton_model for index in range(len(context.modes)))
        yield from ("--model-control-mode=explicit", *(f"--load-model={name}" for name in engines))
    if context.trt.orchestrator and context.trt.spawn_processes:
        yield from ("--pinned-memory-pool-byte-size=0", "--enable-peer-access=false")
        yield from (f"--cuda-memory-pool-byte-size={gpu}:0" for gpu in range(max(len(gpus()), context.world_size)))
    yield from ports
    yield from (f"--{name}-address={listening.host}" for name in ("grpc", "http"))
    yield f"--metrics-address={listening.metrics_host}"
    yield from restricting_words(listening.key)
    yield "--disable-auto-complete-config"
    yield f"--backend-config=python,shm-region-prefix-name={server_id}{rank}_"
