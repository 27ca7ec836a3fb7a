"""The two run folders of `lookahead serve`. Servers run in one; a switch starts new servers in the other. A file names
the folder that serves."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.config.folders import Folders
from pipeline.files import wait_for_lock, write_whole

RUN = ".run"
_SERVING, _SECOND = "serving", "second"


def base_dir(folders: Folders) -> Path:
    """The first run folder. The second one is its subfolder."""
    return folders.engines / RUN


def run_dir(folders: Folders) -> Path:
    """The run folder in which the servers of `lookahead serve` run."""
    return serving_dir(base_dir(folders))


def serving_dir(base: Path) -> Path:
    """The run folder in which servers run, or ran last."""
    try:
        name = (base / _SERVING).read_text(encoding="utf-8", errors="replace").strip()
    except FileNotFoundError:
        return base
    return base / _SECOND if name == _SECOND else base


def free_dir(base: Path) -> Path:
    """The other run folder, for new servers beside the running ones."""
    return base if serving_dir(base) != base else base / _SECOND


def set_serving(base: Path, folder: Path) -> None:
    """Record the run folder in which servers run from now on."""
    write_whole(base / _SERVING, ("" if folder == base else _SECOND) + "\n")


@contextmanager
def locked(base: Path, on_busy: Callable[[], None]) -> Iterator[None]:
    """Lock the run folders against the switches and stops of other processes. on_busy: see `wait_for_lock`. Without a
    folder there is nothing to lock."""
    if not base.is_dir():
        yield
        return
    folder = os.open(base, os.O_RDONLY)  # the folder itself, because the disk may be full or read-only
    try:
        wait_for_lock(folder, on_busy)
        yield
    finally:
        os.close(folder)
