"""What `lookahead clean` removes: engines, leftovers of interrupted builds, and on request downloads."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from pipeline.checkpoint.disk import PARTIAL
from pipeline.config.places import Places
from pipeline.engine.artifact import MANIFEST
from pipeline.engine.tensorrt_llm import STAGES
from pipeline.errors import BuildError


def removable(places: Places, model: str | None, cache: bool) -> list[Path]:
    """Folders that hold an artefact or are leftovers of one, below the engines folder; `cache`: our download folders
    too. Raises BuildError if there are no engines of the model."""
    folders = [places.engines / model] if model is not None else sorted(places.engines.glob("*"))
    if model is not None and not folders[0].is_dir():
        raise BuildError(f"There are no engines of '{model}' in {places.engines}.")
    found = [path for folder in folders for path in sorted(folder.glob("*")) if _is_removable(path)]
    if cache:
        found += [path for name in ("wheels", "random") if (path := places.cache / name).is_dir()]
    return found


def _is_removable(path: Path) -> bool:
    return path.is_dir() and (path.name == STAGES or path.name.startswith(PARTIAL) or (path / MANIFEST).is_file())


def remove(folders: Sequence[Path]) -> None:
    """Remove folders, and model folders that this leaves without an engine."""
    for folder in folders:
        shutil.rmtree(folder)
        if not any(folder.parent.iterdir()):
            folder.parent.rmdir()


def folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
