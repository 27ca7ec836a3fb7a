"""Start commands for an engine of TensorRT-LLM: one tritonserver per rank, with the options of NVIDIA's launcher for
this backend, on this machine or in a container.

Leader mode: mpirun starts a server per rank; ranks above 0 load only the models with an engine. Orchestrator mode: one
server spawns a process per rank of each engine, or is rank 0 of processes that mpirun starts. It needs two environment
variables, and small memory pools if it spawns. We add three options: addresses to listen on (the launcher listens on
all), the key that Triton's interfaces require, and a prefix for shared memory, to find the leftovers of a crashed
server.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from pipeline.backends.tensorrt_llm.build_context import BuildContext, build_context_of
from pipeline.backends.tensorrt_llm.docker import (
    build_image_argv,
    container_name,
    docker_argv,
    ensure_image,
    remove_argv,
    serving_image,
)
from pipeline.backends.tensorrt_llm.environment import gpus
from pipeline.backends.tensorrt_llm.instance import instances_of
from pipeline.config.folders import CODE, Folders
from pipeline.config.schema import ResolvedConfig, TensorRTLLMConfig, TrieDraftConfig
from pipeline.engine.backend import Note
from pipeline.engine.start_command import Listening, MakeCommand, StartCommand
from pipeline.errors import ServerError
from pipeline.files import is_url
from pipeline.server.guard import DRAIN_SECONDS
from pipeline.server.installation import (
    CONTAINER_SERVER,
    Installation,
    backends_dir,
    find_installation,
    served_variables,
    server_environment,
)
from pipeline.server.processes import MARK
from pipeline.server.tritonserver_command import SHOWN_ID, is_plain, plain_names, restricting_words, shown_listening
from pipeline.triton_models.handover import HANDOVER, VARIABLE
from pipeline.triton_models.spans import trace_variables

BACKEND = "tensorrtllm"


@dataclass(frozen=True, slots=True)
class Site:
    """Where a server runs. executable: tritonserver of this machine; None for a server in a container. has_mpirun:
    whether mpirun is available there."""

    executable: Path | None
    has_mpirun: bool


def find_site(environment: Mapping[str, str] = os.environ) -> Site:
    """Find a tritonserver with the TensorRT-LLM backend on this machine, else docker. Raises ServerError if there is
    neither."""
    search = environment.get("PATH")
    try:
        installation = find_installation(environment)
        if (backends_dir(installation.executable) / BACKEND).is_dir():
            return Site(installation.executable, shutil.which("mpirun", path=search) is not None)
        found = f"The tritonserver here ({installation.executable}, {installation.origin}) has no {BACKEND} backend"
    except ServerError:
        found = "There is no tritonserver here"
    if shutil.which("docker", path=search) is not None:
        return Site(None, has_mpirun=True)
    raise ServerError(
        f"{found}, and docker was not found. Use NVIDIA's container with TensorRT-LLM, install docker with the "
        "NVIDIA container toolkit, or use --set backend=torch."
    )


def startable_site(resolved: ResolvedConfig) -> Site:
    """Where a new server will run. Raises ServerError if this machine has neither tritonserver nor docker, lacks mpirun
    for several ranks, or has fewer GPUs than an engine has ranks. Two engines share the GPUs."""
    site, context = find_site(), build_context_of(resolved)
    if context.num_processes > 1 and not site.has_mpirun:
        raise ServerError(
            f"{context.num_processes} ranks need mpirun, which was not found. Install Open MPI, or use NVIDIA's "
            "container."
        )
    if (found := len(gpus())) < context.world_size:
        raise ServerError(
            f"{context.world_size} rank(s) need a GPU each, and nvidia-smi shows {found}. Serve on the machine of the "
            "build, or lower model.parallelism; --set backend=torch needs no GPU."
        )
    return site


def start_here(
    resolved: ResolvedConfig, repository: Path, folders: Folders, run_dir: Path, log: Path | None, note: Note
) -> MakeCommand:
    """Return a function that makes the command of a server. For a container, builds the image if it is missing."""
    site, num_ranks = startable_site(resolved), build_context_of(resolved).num_processes
    if site.executable is None:
        tag = resolved.profile.tensorrt_llm.container_tag
        note(f"server: in docker, image {serving_image(tag)}")
        ensure_image(tag, folders.home, run_dir)
    else:
        note(f"server: {site.executable}, {num_ranks} rank(s){' under mpirun' if site.has_mpirun else ''}")
    return _command_maker(resolved, repository, site, folders, log, {VARIABLE: str(run_dir / HANDOVER)})


def shown_commands(resolved: ResolvedConfig, repository: Path, folders: Folders) -> list[StartCommand]:
    """Commands of a start, in order, with placeholders for the server's id and for ports that are 0. On a machine
    without tritonserver and docker, these are the commands for use in NVIDIA's container."""
    try:
        site = find_site()
    except ServerError:
        site = Site(CONTAINER_SERVER, has_mpirun=True)
    make = _command_maker(resolved, repository, site, folders)
    command = make(shown_listening(resolved.profile.server), SHOWN_ID)
    if site.executable is not None:
        return [command]
    build = build_image_argv(resolved.profile.tensorrt_llm.container_tag, folders.home)
    return [StartCommand(build, {}), command]


def _command_maker(
    resolved: ResolvedConfig,
    repository: Path,
    site: Site,
    folders: Folders,
    verbose_log: Path | None = None,
    in_container: Mapping[str, str] = MappingProxyType({}),
) -> MakeCommand:
    """Return the function that makes the start command. in_container: environment variables for a server in a
    container, which does not inherit the guard's."""
    context = build_context_of(resolved)
    variables, use_mpi = orchestrator_variables(context.trt), site.has_mpirun or context.num_processes > 1

    def make(listening: Listening, server_id: str) -> StartCommand:
        server = str(site.executable or CONTAINER_SERVER)
        if site.executable is None:
            if not is_plain(repository):
                raise ServerError(
                    f"Triton's Python backend cannot open files in {repository}: the path has a space or another "
                    "special character of the shell. Set LOOKAHEAD_ENGINES to a folder with a plain name."
                )
            words = launch_words(context, server, use_mpi, repository, listening, server_id, verbose_log)
            return _in_container(resolved, words, {**variables, **in_container}, server_id, folders, repository)
        names, links = plain_names(server_id, repository=repository)
        words = launch_words(context, server, use_mpi, names["repository"], listening, server_id, verbose_log)
        environment = server_environment(folders, Installation(site.executable, "TensorRT-LLM"))
        return StartCommand(words, {**environment, **variables}, shown=variables, links=links)

    return make


def _in_container(
    resolved: ResolvedConfig,
    words: Sequence[str],
    own: Mapping[str, str],
    server_id: str,
    folders: Folders,
    repository: Path,
) -> StartCommand:
    traces = trace_variables(resolved.profile.server.otlp_endpoint)
    variables = {"PYTHONPATH": str(CODE), **served_variables(folders), **traces, **own, MARK: server_id}
    files = [] if repository.is_relative_to(folders.engines) else [repository]
    files += [
        Path(source.snapshot)
        for source in resolved.profile.drafting.sources
        if isinstance(source, TrieDraftConfig) and source.snapshot is not None and not is_url(source.snapshot)
    ]
    argv = docker_argv(
        serving_image(resolved.profile.tensorrt_llm.container_tag),
        words,
        name=container_name(server_id),
        writable=[folders.engines],
        readable=[CODE, folders.home, *folders.engine_folders[1:], *files],
        work_dir=folders.home,
        environment=variables,
        options=("--network", "host"),
    )
    return StartCommand(argv, dict(os.environ), remove_argv(server_id))


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
        engines = (f"--load-model={instance.triton_model}" for instance in instances_of(context))
        yield from ("--model-control-mode=explicit", *engines)
    if context.trt.orchestrator and context.trt.spawn_processes:
        yield from ("--pinned-memory-pool-byte-size=0", "--enable-peer-access=false")
        yield from (f"--cuda-memory-pool-byte-size={gpu}:0" for gpu in range(max(len(gpus()), context.world_size)))
    yield from ports
    yield from (f"--{name}-address={listening.host}" for name in ("grpc", "http", "metrics"))
    yield from restricting_words(listening.key)
    yield "--disable-auto-complete-config"
    yield f"--backend-config=python,shm-region-prefix-name={server_id}{rank}_"
