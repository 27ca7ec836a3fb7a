"""ResolvedConfig -> running server: the stages of the road one after the other, skipped where already done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from pipeline.config.places import Places
from pipeline.config.schema import ResolvedConfig
from pipeline.engine.artifact import Artifact
from pipeline.engine.build import build_engine
from pipeline.errors import ServerError
from pipeline.repository.render import ModelRepository, render, repository_dir
from pipeline.serving.server import RunningServer, start_server

RUN = ".run"
# The engine in memory is about its weights; packed copies of the layers, buffers and the other models come on top.
_MEMORY_FACTOR = 1.6
_OTHER_BYTES = 900 << 20

Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Served:
    """What a server is started from."""

    resolved: ResolvedConfig
    artifact: Artifact
    repository: ModelRepository


def run_dir(places: Places) -> Path:
    """The run folder of `lookahead serve`."""
    return places.engines / RUN


def prepare(
    resolved: ResolvedConfig, places: Places, out_dir: Path | None = None, note: Note = lambda text: None
) -> Served:
    """Build the engine and render the repository, to out_dir or beside the engine."""
    result = build_engine(resolved, places, note=note)
    note(f"engine: {result.outcome} ({result.artifact.folder})")
    target = repository_dir(result.artifact) if out_dir is None else out_dir
    repository = render(resolved, result.artifact, target, places.home / "triton_repo")
    note(f"model repository: {repository.folder}")
    return Served(resolved, result.artifact, repository)


def launch(
    served: Served, places: Places, folder: Path, *, detach: bool = False, note: Note = lambda text: None
) -> RunningServer:
    """Start a server on what was prepared. folder: its run folder. Raises ServerError, also if memory will not do."""
    require_memory(served)
    return start_server(
        served.repository.folder,
        folder,
        served.resolved.profile.server,
        places=places,
        model=served.resolved.model.name,
        profile=served.resolved.profile.name,
        detach=detach,
        note=note,
    )


def require_memory(served: Served) -> None:
    """Raises ServerError if the engine will not fit into the machine's memory."""
    if served.resolved.device != "cpu":
        return
    needed = int(served.artifact.manifest.num_bytes * _MEMORY_FACTOR) + _OTHER_BYTES
    available = psutil.virtual_memory().available
    if needed > available:
        raise ServerError(
            f"Serving {served.resolved.model.name} needs {needed / 1e9:.1f} GB of memory; {available / 1e9:.1f} GB "
            "are available. Close other programs, serve a smaller model, or build with --set model.dtype=bfloat16."
        )
