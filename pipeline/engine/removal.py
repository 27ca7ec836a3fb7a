"""Targets of `lookahead clean`: engines with their plans and measurements, leftovers of interrupted builds, and
downloads."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from stat import S_ISREG

from pipeline.checkpoint.disk import PARTIAL
from pipeline.config.folders import Folders
from pipeline.engine.artifact import COSTS, FIRST_ROWS, LOCKS, MANIFEST, PLAN_SUFFIX, STAGES
from pipeline.errors import BuildError
from pipeline.files import try_lock


def removable(folders: Folders, model: str | None, cache: bool) -> list[Path]:
    """Artifacts, plans and leftovers below the engines folder; with `cache` the download folders too. Raises BuildError
    if there are no engines of the model, OSError for a folder that cannot be read."""
    if model is not None:
        paths = [folders.engines / model]
        if not paths[0].is_dir():
            raise BuildError(f"There are no engines of '{model}' in {folders.engines}.")
    else:
        paths = sorted(folders.engines.iterdir()) if folders.engines.exists() else []
    # `glob` takes a folder that cannot be read for an empty one.
    found = [path for folder in paths if folder.is_dir() for path in sorted(folder.iterdir()) if _is_removable(path)]
    if cache:
        found += [path for name in ("wheels", "random", "kernels") if (path := folders.cache / name).is_dir()]
    return found


def require_unused(folders: Folders, paths: Sequence[Path], served: Path | None) -> None:
    """Raise BuildError if a build writes into one of the paths, or a server uses it. served: its repository."""
    for folder in paths:
        if served is not None and served.is_relative_to(folder):
            raise BuildError(f"{folder} is being served. Stop the server with `lookahead stop` first.")
        lock = folders.engines / LOCKS / folder.parent.name
        if folder.parent.parent == folders.engines and lock.is_file():
            with lock.open() as file:
                if not try_lock(file, shared=True):
                    raise BuildError(
                        f"An engine of {folder.parent.name} is being built. Wait for it, or stop it first."
                    )


def _is_removable(path: Path) -> bool:
    if not path.is_dir():
        return path.name.endswith(PLAN_SUFFIX)
    return path.name in (STAGES, COSTS, FIRST_ROWS) or path.name.startswith(PARTIAL) or (path / MANIFEST).is_file()


def remove(paths: Sequence[Path]) -> None:
    """Remove folders and files, and folders of models that are empty afterwards."""
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
        if not any(path.parent.iterdir()):
            path.parent.rmdir()


def sizes_of(paths: Sequence[Path]) -> list[int]:
    """Bytes that the removal of each path frees, if they are removed in order: files that several profiles share count
    in the last one, and a link to a file as nothing."""
    files = [(path.lstat(), index) for index, top in enumerate(paths) for path in (top, *top.rglob("*"))]
    last = {(state.st_dev, state.st_ino): (state.st_size, index) for state, index in files if S_ISREG(state.st_mode)}
    sizes = [0] * len(paths)
    for size, index in last.values():
        sizes[index] += size
    return sizes
