"""Targets of `lookahead clean`: engines with their measurements, leftovers of interrupted builds, and downloads."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from stat import S_ISREG

from pipeline.checkpoint.disk import PARTIAL
from pipeline.config.places import Places
from pipeline.engine.artifact import COSTS, FIRST_ROWS, LOCKS, MANIFEST, STAGES
from pipeline.errors import BuildError
from pipeline.files import try_lock


def removable(places: Places, model: str | None, cache: bool) -> list[Path]:
    """Folders of artifacts and leftovers below the engines folder; with `cache` the download folders too. Raises
    BuildError if there are no engines of the model."""
    folders = [places.engines / model] if model is not None else sorted(places.engines.glob("*"))
    if model is not None and not folders[0].is_dir():
        raise BuildError(f"There are no engines of '{model}' in {places.engines}.")
    found = [path for folder in folders for path in sorted(folder.glob("*")) if _is_removable(path)]
    if cache:
        found += [path for name in ("wheels", "random", "kernels") if (path := places.cache / name).is_dir()]
    return found


def require_unused(places: Places, folders: Sequence[Path], served: Path | None) -> None:
    """Raise BuildError if a build writes into the folders, or a server uses them. served: the server's repository."""
    for folder in folders:
        if served is not None and served.is_relative_to(folder):
            raise BuildError(f"{folder} is being served. Stop the server with `lookahead stop` first.")
        lock = places.engines / LOCKS / folder.parent.name
        if folder.parent.parent == places.engines and lock.is_file():
            with lock.open() as file:
                if not try_lock(file, shared=True):
                    raise BuildError(
                        f"An engine of {folder.parent.name} is being built. Wait for it, or stop it first."
                    )


def _is_removable(path: Path) -> bool:
    if not path.is_dir():
        return False
    return path.name in (STAGES, COSTS, FIRST_ROWS) or path.name.startswith(PARTIAL) or (path / MANIFEST).is_file()


def remove(folders: Sequence[Path]) -> None:
    """Remove folders, and model folders that are empty afterwards."""
    for folder in folders:
        shutil.rmtree(folder)
        if not any(folder.parent.iterdir()):
            folder.parent.rmdir()


def sizes_of(folders: Sequence[Path]) -> list[int]:
    """Bytes that the removal of each folder frees, if the folders are removed in order: files that several profiles
    share count in the last one."""
    files = [(path.stat(), index) for index, folder in enumerate(folders) for path in folder.rglob("*")]
    last = {(state.st_dev, state.st_ino): (state.st_size, index) for state, index in files if S_ISREG(state.st_mode)}
    sizes = [0] * len(folders)
    for size, index in last.values():
        sizes[index] += size
    return sizes
