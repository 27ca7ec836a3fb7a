"""ResolvedConfig -> running server: the stages of the road one after the other, skipped where already done."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pipeline.config.places import Places
from pipeline.config.schema import ResolvedConfig
from pipeline.engine.artifact import Artifact, artifact_dir
from pipeline.engine.builder import Note
from pipeline.engine.memory import require_memory
from pipeline.errors import ServerError
from pipeline.repository.render import REPOSITORY, ModelRepository, render, repository_dir
from pipeline.server.command import SHOWN_ID, VERBOSE_LOG, MakeCommand, StartCommand, single_process
from pipeline.server.docker import ensure_image, serving_image
from pipeline.server.installation import find_installation, usable_installation
from pipeline.server.ports import Ports, choose_ports
from pipeline.server.server import BACKENDS, RunningServer, start_server
from pipeline.server.tensorrt_llm_command import (
    find_site,
    make_tensorrt_llm_command,
    options_for,
    require_startable,
    shown_commands,
)
from pipeline.tuning.planned_engine import planned_engine

RUN = ".run"
# The engine in memory is about its weights; packed copies of the layers, buffers and the other models come on top.
_MEMORY_FACTOR = 1.6
_OTHER_BYTES = 900 << 20


@dataclass(frozen=True, slots=True)
class Served:
    """What a server is started from."""

    resolved: ResolvedConfig
    artifact: Artifact
    repository: ModelRepository


def run_dir(places: Places) -> Path:
    """The run folder of `lookahead serve`."""
    return places.engines / RUN


def check_start(resolved: ResolvedConfig, places: Places) -> str:
    """What will serve here. Raises ServerError for what would prevent it; asked before an engine is built."""
    choose_ports(resolved.profile.server)
    if resolved.backend == "torch":
        return str(usable_installation(places).executable)
    site = find_site()
    require_startable(resolved, site)
    return "in docker" if site.executable is None else str(site.executable)


def prepare(
    resolved: ResolvedConfig, places: Places, out_dir: Path | None = None, note: Note = lambda text: None
) -> Served:
    """Build the engine and render the repository, to out_dir or beside the engine. Raises ServerError for settings that
    only work in process, and what `create_drafter` and `planned_engine` raise."""
    if resolved.backend == "torch" and resolved.model.parallelism.tensor > 1:
        raise ServerError(
            f"model.parallelism.tensor = {resolved.model.parallelism.tensor} of the torch backend runs in process only "
            "(bench, verify, tune, experiments). Use model.parallelism.tensor = 1, or backend: tensorrt_llm."
        )
    if resolved.profile.engine.lookahead_parallel > 1:
        raise ServerError(
            f"engine.lookahead_parallel = {resolved.profile.engine.lookahead_parallel} runs in process only (bench, "
            "verify, tune, experiments); a server runs the engine in one process. Use engine.lookahead_parallel = 1."
        )
    # Numba takes a while to load, and most users of this module build nothing.
    from pipeline.decoding.create import create_drafter
    from pipeline.decoding.sources.trie import TrieSource

    # A snapshot that cannot be read is told here rather than in the log of a server that does not come up.
    create_drafter(resolved.profile.drafting.sources, resolved.lookahead, vocab_size=1, kinds={TrieSource.name})
    result = planned_engine(resolved, places, note=note)
    note(f"engine: {result.outcome} ({result.artifact.folder})")
    target = repository_dir(result.artifact) if out_dir is None else out_dir
    repository = render(resolved, result.artifact, target, places.home / "triton_repo")
    note(f"model repository: {repository.folder}")
    return Served(resolved, result.artifact, repository)


def launch(
    served: Served,
    places: Places,
    folder: Path,
    *,
    detach: bool = False,
    verbose: bool = False,
    note: Note = lambda text: None,
) -> RunningServer:
    """Start a server on what was prepared. folder: its run folder. verbose: Triton's log of every step, beside the
    server's. Raises ServerError, also if memory or GPUs will not do."""
    _require_memory(served)
    resolved = served.resolved
    log = folder / VERBOSE_LOG if verbose else None
    make = _tensorrt_llm(served, places, folder, log, note) if resolved.backend == "tensorrt_llm" else None
    return start_server(
        served.repository.folder,
        folder,
        resolved.profile.server,
        places=places,
        model=resolved.model.name,
        profile=resolved.profile.name,
        make_command=make,
        verbose_log=log,
        detach=detach,
        note=note,
    )


def start_commands(resolved: ResolvedConfig, places: Places) -> list[StartCommand]:
    """What `launch` would run for a config, without building or starting anything."""
    repository = artifact_dir(places, resolved.model.name, resolved.profile.name) / REPOSITORY
    if resolved.backend == "tensorrt_llm":
        return shown_commands(resolved, repository, places)
    server, installation = resolved.profile.server, find_installation()
    backends = None if installation.wheel_dir is None else run_dir(places) / BACKENDS
    make = single_process(installation, backends, repository, server.host, {})
    return [make(Ports(server.http_port, server.grpc_port, server.metrics_port), SHOWN_ID)]


def _tensorrt_llm(served: Served, places: Places, folder: Path, log: Path | None, note: Note) -> MakeCommand:
    """The command for the served engine, its image built if it runs in a container."""
    resolved, site = served.resolved, find_site()
    require_startable(resolved, site)
    options = options_for(resolved, served.repository.folder, site, log)
    if site.executable is None:
        tag = resolved.profile.tensorrt_llm.container_tag
        note(f"server: in docker, image {serving_image(tag)}")
        ensure_image(tag, places.home, folder)
    else:
        note(f"server: {site.executable}, {options.world_size} rank(s){' under mpirun' if options.use_mpi else ''}")
    return make_tensorrt_llm_command(resolved, options, site, places)


def _require_memory(served: Served) -> None:
    """Raises ServerError if the engine will not fit into the machine's memory."""
    if served.resolved.device != "cpu":
        return
    needed = int(served.artifact.manifest.num_bytes * _MEMORY_FACTOR) + _OTHER_BYTES
    remedy = "Close other programs, serve a smaller model, or build with --set model.dtype=bfloat16."
    require_memory(needed, f"Serving {served.resolved.model.name}", remedy, ServerError)
