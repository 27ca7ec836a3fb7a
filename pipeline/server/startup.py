"""ResolvedConfig -> running server: build, render and start. Skips stages that are already done."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pipeline.config.folders import Folders
from pipeline.config.schema import ResolvedConfig
from pipeline.engine.artifact import Artifact, artifact_dir
from pipeline.engine.backend import Note, backend_of
from pipeline.engine.memory import available_bytes, require_memory
from pipeline.engine.start_command import StartCommand
from pipeline.errors import ServerError
from pipeline.repository.names import REPOSITORY
from pipeline.server.log import VERBOSE_LOG
from pipeline.server.memory_fit import kv_bytes, memory_fit, serving_bytes
from pipeline.server.ports import choose_ports
from pipeline.server.server import RunningServer, start_server


@dataclass(frozen=True, slots=True)
class PreparedServer:
    """Input of `launch`. repository: folder of the model repository."""

    resolved: ResolvedConfig
    artifact: Artifact
    repository: Path


def check_start(resolved: ResolvedConfig, folders: Folders) -> str:
    """Name of the program that will serve. Raises ServerError if a server cannot start here. To be called before an
    engine is built."""
    choose_ports(resolved.profile.server)
    return backend_of(resolved.backend).check_start(resolved, folders)


def prepare(
    resolved: ResolvedConfig, folders: Folders, out_dir: Path | None = None, note: Note = lambda text: None
) -> PreparedServer:
    """Build the engine, and render the repository to out_dir or beside the engine. Raises ServerError for settings that
    only work in process, and the errors of `create_drafter` and `planned_engine`."""
    backend_of(resolved.backend).check_served(resolved)
    # Numba and tritonclient take a while to load, and most users of this module build nothing.
    from pipeline.decoding.drafting.drafter_factory import create_drafter
    from pipeline.decoding.sources.trie import TrieSource
    from pipeline.repository.render import render, repository_dir
    from pipeline.tuning.planned_engine import planned_engine

    # Reports an unreadable trie snapshot here, not in the log of a server that does not start.
    create_drafter(resolved.profile.drafting.sources, resolved.lookahead, vocab_size=1, kinds={TrieSource.name})
    result = planned_engine(resolved, folders, note=note)
    note(f"engine: {result.text} ({result.artifact.folder})")
    repository = repository_dir(result.artifact) if out_dir is None else out_dir
    render(resolved, result.artifact, repository, folders.home / "triton_repo")
    note(f"model repository: {repository}")
    return PreparedServer(resolved, result.artifact, repository)


def launch(
    served: PreparedServer,
    folders: Folders,
    folder: Path,
    *,
    with_openai: bool = False,
    with_gateway: bool = True,
    fleet_dir: Path | None = None,
    verbose: bool = False,
    note: Note = lambda text: None,
) -> RunningServer:
    """Start a prepared server. folder: its run folder. with_openai, with_gateway, fleet_dir: see `start_server`.
    verbose: write Triton's verbose log beside the server's log. Raises ServerError if it does not start, or if the
    memory or the GPUs are insufficient."""
    resolved, repository = served.resolved, served.repository
    _require_memory(served)
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / VERBOSE_LOG if verbose else None
    make_command = backend_of(resolved.backend).make_command(resolved, repository, folders, folder, log, note)
    return start_server(
        resolved,
        repository,
        folder,
        make_command,
        with_openai=with_openai,
        with_gateway=with_gateway,
        fleet_dir=fleet_dir,
        note=note,
    )


def start_commands(resolved: ResolvedConfig, folders: Folders) -> list[StartCommand]:
    """Commands that `launch` would run for a config. Builds and starts nothing."""
    repository = artifact_dir(folders, resolved.model.name, resolved.profile.name) / REPOSITORY
    return list(backend_of(resolved.backend).shown_commands(resolved, repository, folders))


def fits_beside(served: PreparedServer, num_servers: int) -> bool:
    """Whether this number of servers fits into the free memory. False if unknown, as on a GPU."""
    needed = num_servers * (serving_bytes(served.artifact.manifest.num_bytes) + kv_bytes(served.resolved))
    return served.resolved.device == "cpu" and needed <= available_bytes()


def _require_memory(served: PreparedServer) -> None:
    """Raise ServerError if the server does not fit into the machine's memory. The message has a setting that fits."""
    resolved = served.resolved
    if resolved.device == "cpu":
        fit = memory_fit(resolved, available_bytes(), served.artifact.manifest.num_bytes)
        remedy = "Close other programs, or serve a smaller model."
        if fit.setting:
            remedy = f"Build with --set {fit.setting}."
        require_memory(fit.needed_bytes, f"Serving {resolved.model.name}", remedy, ServerError)
