"""What a backend must offer so that `build_engine` and `--dry-run` serve it, and where a backend's name becomes its
module."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, cast

from pipeline.checkpoint.checkpoint import Checkpoint
from pipeline.config.rules import Conflict
from pipeline.config.schema import Backend, ResolvedConfig
from pipeline.engine.fingerprint import Fingerprint

# Told of each step of something long.
Note = Callable[[str], None]

_MODULES: dict[Backend, str] = {
    "torch": "pipeline.engine.torch.build",
    "tensorrt_llm": "pipeline.engine.tensorrt_llm.build",
}


class EngineBuilder(Protocol):
    """A module `pipeline.engine.<backend>.build`."""

    def check(self, resolved: ResolvedConfig) -> None:
        """Raise ConfigError or BuildError for what cannot work, before anything is downloaded or written."""

    def check_config(self, resolved: ResolvedConfig, folder: Path) -> object:
        """Raise CheckpointError for a checkpoint's config.json that this backend does not serve. The folder may hold
        nothing else yet: asked before a long download."""

    def plan(self, resolved: ResolvedConfig) -> Mapping[str, Any]:
        """What a build would do: sizes, stages, commands. JSON values. No network, no files, on any machine."""

    def fingerprint(self, resolved: ResolvedConfig, checkpoint_hash: str) -> Fingerprint:
        """Of an engine built here and now. Raises BuildError if the backend is not installed."""

    def require_resources(self, resolved: ResolvedConfig, folder: Path) -> None:
        """Raise BuildError if disk, memory or GPU memory will not do."""

    def write_engine(self, resolved: ResolvedConfig, checkpoint: Checkpoint, note: Note, folder: Path) -> None:
        """Write folder/engine and folder/tokenizer. `folder` exists, is empty, and vanishes if this raises. `note` is
        told of each stage."""


def builder_for(backend: Backend) -> EngineBuilder:
    """The builder of a backend; its module imports on every machine."""
    return cast(EngineBuilder, importlib.import_module(_MODULES[backend]))


def conflicts_with_backend(resolved: ResolvedConfig) -> Iterable[Conflict]:
    """What the backend has against the settings of a config, for `resolve_config`."""
    if resolved.backend != "tensorrt_llm":
        return ()
    from pipeline.engine.tensorrt_llm.rules import conflicts_of

    return conflicts_of(resolved)
