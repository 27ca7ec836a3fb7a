"""What to run for an engine of TensorRT-LLM: mpirun and one tritonserver per rank, here or in a container."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.backends.tensorrt_llm.case import case_of
from pipeline.backends.tensorrt_llm.docker import build_image_argv, ensure_image, remove_argv, run_argv, serving_image
from pipeline.backends.tensorrt_llm.environment import gpus
from pipeline.backends.tensorrt_llm.instance import instance_of
from pipeline.backends.tensorrt_llm.launch import CONTAINER_SERVER, Launch, LaunchOptions, launch_of
from pipeline.config.places import CODE, Places
from pipeline.config.schema import ResolvedConfig, TrieDraftConfig
from pipeline.engine.backend import Note
from pipeline.engine.command import Listening, MakeCommand, StartCommand
from pipeline.errors import ServerError
from pipeline.server.command import SHOWN_ID, is_plain, plain_names, restricting_words, shown_listening
from pipeline.server.guard import DRAIN_SECONDS
from pipeline.server.installation import (
    Installation,
    backends_dir,
    find_installation,
    served_variables,
    server_environment,
)
from pipeline.server.processes import MARK

BACKEND = "tensorrtllm"


@dataclass(frozen=True, slots=True)
class Site:
    """Where an engine is served. executable: the tritonserver; None: in a container. has_mpirun: on this machine."""

    executable: Path | None
    has_mpirun: bool


def find_site(environment: Mapping[str, str] = os.environ, container: Path = Path(CONTAINER_SERVER)) -> Site:
    """A tritonserver of this machine with the TensorRT-LLM backend, else docker. Raises ServerError if neither is
    there."""
    search = environment.get("PATH")
    try:
        installation = find_installation(environment, container)
        if (backends_dir(installation.executable) / BACKEND).is_dir():
            return Site(installation.executable, shutil.which("mpirun", path=search) is not None)
        found = f"The tritonserver here ({installation.executable}, {installation.origin}) has no {BACKEND} backend"
    except ServerError:
        found = "There is no tritonserver here"
    if shutil.which("docker", path=search) is not None:
        return Site(None, has_mpirun=True)
    raise ServerError(
        f"{found}, and docker was not found. Work in NVIDIA's container with TensorRT-LLM, install docker with the "
        "NVIDIA container toolkit, or use --set backend=torch."
    )


def options_for(
    resolved: ResolvedConfig, repository: Path, site: Site, verbose_log: Path | None = None
) -> LaunchOptions:
    """Launch options of a config, its ports as they stand there."""
    case, server = case_of(resolved), resolved.profile.server
    return LaunchOptions(
        repository=repository,
        http_port=server.http_port,
        grpc_port=server.grpc_port,
        metrics_port=server.metrics_port,
        tritonserver=CONTAINER_SERVER if site.executable is None else str(site.executable),
        world_size=case.num_processes,
        engine_models=tuple(instance_of(case, index).triton_model for index in range(len(case.modes))),
        use_mpi=site.has_mpirun or case.num_processes > 1,
        exit_timeout_s=round(DRAIN_SECONDS),
        log_file=verbose_log,
        orchestrator=case.trt.orchestrator,
        spawn_processes=case.trt.spawn_processes,
        gpus=tuple(range(max(len(gpus()), case.world_size))),
        host=server.host,
    )


def require_startable(resolved: ResolvedConfig, site: Site) -> None:
    """Raises ServerError if this machine has no mpirun where it is needed, or fewer GPUs than an engine has ranks. Two
    engines share them."""
    case = case_of(resolved)
    if case.num_processes > 1 and not site.has_mpirun:
        raise ServerError(
            f"{case.num_processes} ranks are started with mpirun, which was not found. Install Open MPI, or work in "
            "NVIDIA's container."
        )
    if (found := len(gpus())) < case.world_size:
        raise ServerError(
            f"{case.world_size} rank(s) need a GPU each, and nvidia-smi shows {found}. Serve where the engine was "
            "built, or lower model.parallelism; --set backend=torch needs no GPU."
        )


def check_start(resolved: ResolvedConfig) -> str:
    """Where a server would run. Raises ServerError for what would prevent it."""
    site = find_site()
    require_startable(resolved, site)
    return "in docker" if site.executable is None else str(site.executable)


def start_here(
    resolved: ResolvedConfig, repository: Path, places: Places, run_dir: Path, log: Path | None, note: Note
) -> MakeCommand:
    """The command of a server on a repository, its image built if it runs in a container."""
    site = find_site()
    require_startable(resolved, site)
    options = options_for(resolved, repository, site, log)
    if site.executable is None:
        tag = resolved.profile.tensorrt_llm.container_tag
        note(f"server: in docker, image {serving_image(tag)}")
        ensure_image(tag, places.home, run_dir)
    else:
        note(f"server: {site.executable}, {options.world_size} rank(s){' under mpirun' if options.use_mpi else ''}")
    return make_tensorrt_llm_command(resolved, options, site, places)


def planned_site() -> Site:
    """As `find_site`; where nothing is there, as it would be in NVIDIA's container."""
    try:
        return find_site()
    except ServerError:
        return Site(Path(CONTAINER_SERVER), has_mpirun=True)


def shown_commands(resolved: ResolvedConfig, repository: Path, places: Places) -> list[StartCommand]:
    """What a start would run, in order; ports that are 0 and the server's id are settled by the start."""
    site, server = planned_site(), resolved.profile.server
    options = options_for(resolved, repository, site)
    make = make_tensorrt_llm_command(resolved, options, site, places)
    command = make(shown_listening(server), SHOWN_ID)
    if site.executable is not None:
        return [command]
    build = build_image_argv(resolved.profile.tensorrt_llm.container_tag, places.home)
    return [StartCommand(build, {}), command]


def make_tensorrt_llm_command(
    resolved: ResolvedConfig, options: LaunchOptions, site: Site, places: Places
) -> MakeCommand:
    """The command of a server with this engine."""

    def make(listening: Listening, server_id: str) -> StartCommand:
        if site.executable is None:
            if not is_plain(options.repository):
                raise ServerError(
                    f"Triton's Python backend cannot open files in {options.repository}: the path has a blank or "
                    "another character that a shell reads. Set LOOKAHEAD_ENGINES to a folder without."
                )
            return _in_container(resolved, launch_of(with_ports(options, listening, server_id)), server_id, places)
        names, links = plain_names(server_id, repository=options.repository)
        launch = launch_of(replace(with_ports(options, listening, server_id), repository=names["repository"]))
        environment = {
            **server_environment(places, Installation(site.executable, "TensorRT-LLM")),
            **launch.environment,
        }
        return StartCommand(launch.argv, environment, shown=launch.environment, links=links)

    return make


def with_ports(options: LaunchOptions, listening: Listening, server_id: str) -> LaunchOptions:
    """Options with chosen ports, and shared memory named after the server."""
    ports = listening.ports
    return replace(
        options,
        http_port=ports.http,
        grpc_port=ports.grpc,
        metrics_port=ports.metrics,
        host=listening.host,
        metrics_host=listening.metrics_host,
        restrictions=tuple(restricting_words(listening.key)),
        shm_prefix=server_id,
    )


def _in_container(resolved: ResolvedConfig, launch: Launch, server_id: str, places: Places) -> StartCommand:
    variables = {"PYTHONPATH": str(CODE), **served_variables(places), **launch.environment, MARK: server_id}
    tag = resolved.profile.tensorrt_llm.container_tag
    snapshots = [
        Path(source.snapshot)
        for source in resolved.profile.drafting.sources
        if isinstance(source, TrieDraftConfig) and source.snapshot is not None
    ]
    argv = run_argv(tag, launch.argv, server_id, variables, places, snapshots)
    return StartCommand(argv, dict(os.environ), remove_argv(server_id))
