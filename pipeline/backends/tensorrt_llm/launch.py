"""Starting tritonserver for one rank or many, word for word as NVIDIA's launcher for this backend does.

Leader mode: one server per rank under mpirun, and ranks above 0 load only the models with an engine. Orchestrator
mode: one server that spawns a process per rank of each engine, or that is rank 0 beside them if they are started with
it; it needs two variables, and small memory pools where it spawns. Two things may be added to the launcher's words:
addresses to listen on (it always takes all), and a name of our own for shared memory, by which a crashed server's
leftovers are found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.engine.command import Ports

STOCK_PORTS = Ports(8000, 8001, 8002)
CONTAINER_SERVER = "/opt/tritonserver/bin/tritonserver"


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """ports, host, metrics_host: as in `Listening`; host None: all addresses, as the stock launcher. world_size: ranks
    that mpirun starts; an orchestrator that spawns those of its engines is one. engine_models: Triton models that hold
    an engine. log_file: verbose log of rank 0. gpus: GPU numbers, for orchestrator mode. use_mpi: also for one rank, as
    the stock launcher does by default. restrictions: options that ask clients for a key. shm_prefix: how names of
    shared memory begin; the rank follows."""

    repository: Path
    ports: Ports = STOCK_PORTS
    tritonserver: str = CONTAINER_SERVER
    world_size: int = 1
    engine_models: tuple[str, ...] = ("tensorrt_llm",)
    use_mpi: bool = True
    exit_timeout_s: int | None = None
    log_file: Path | None = None
    orchestrator: bool = False
    spawn_processes: bool = True
    gpus: tuple[int, ...] = (0,)
    host: str | None = None
    metrics_host: str | None = None
    restrictions: tuple[str, ...] = ()
    shm_prefix: str = "prefix"


@dataclass(frozen=True, slots=True)
class Launch:
    """What to run. environment: variables on top of the shell's."""

    argv: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)


def launch_of(options: LaunchOptions) -> Launch:
    assert options.use_mpi or options.world_size == 1, "mpirun starts ranks besides the first"
    spawns = options.orchestrator and options.spawn_processes
    assert not spawns or options.world_size == 1, "an orchestrator that spawns its ranks is one process"
    environment = {}
    if options.orchestrator:
        environment = {
            "TRTLLM_ORCHESTRATOR": "1",
            "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": "1" if options.spawn_processes else "0",
        }
    words: list[str] = []
    if options.use_mpi:
        words += ["mpirun", "--allow-run-as-root"]
    for rank in range(options.world_size):
        words += _of_rank(rank, options)
    return Launch(tuple(words), environment)


def _of_rank(rank: int, options: LaunchOptions) -> Sequence[str]:
    ports = [f"--{name}-port={getattr(options.ports, name)}" for name in ("grpc", "http", "metrics")]
    words = ["-n", "1"] if options.use_mpi else []
    words += [options.tritonserver, f"--model-repository={options.repository}"]
    if options.exit_timeout_s is not None:
        words.append(f"--exit-timeout-secs={options.exit_timeout_s}")
    words += ports
    if rank == 0 and options.log_file is not None:
        words += ["--log-verbose=3", f"--log-file={options.log_file}"]
    if rank > 0:
        words += ["--model-control-mode=explicit", *(f"--load-model={name}" for name in options.engine_models)]
    if options.orchestrator and options.spawn_processes:
        words += ["--pinned-memory-pool-byte-size=0", "--enable-peer-access=false"]
        words += [f"--cuda-memory-pool-byte-size={gpu}:0" for gpu in options.gpus]
    words += ports
    if options.host is not None:
        words += [f"--{name}-address={options.host}" for name in ("grpc", "http")]
        words.append(f"--metrics-address={options.metrics_host or options.host}")
    words += options.restrictions
    words.append("--disable-auto-complete-config")
    words.append(f"--backend-config=python,shm-region-prefix-name={options.shm_prefix}{rank}_")
    return [*words, ":"] if options.use_mpi else words
