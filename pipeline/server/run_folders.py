"""Run folders. `lookahead serve` has two: servers run in one, a switch starts new servers in the other, and a file
names the one that serves. The servers of `demo` and of `verify --failover` have a temporary one."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

from pipeline.config.folders import Folders
from pipeline.errors import UserError
from pipeline.files import wait_for_lock, write_atomically

RUN = ".run"
_SERVING, _SECOND = "serving", "second"


class Stoppable(Protocol):
    """Servers that this process has started."""

    def stop(self) -> None:
        """Stop them with all their processes."""


_Servers = TypeVar("_Servers", bound=Stoppable)


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
    write_atomically(base / _SERVING, ("" if folder == base else _SECOND) + "\n")


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


@contextmanager
def temporarily(start: Callable[[Path], _Servers], on_stop: Callable[[], None]) -> Iterator[_Servers]:
    """Start servers in a new run folder, and stop them at the end of the block. on_stop: called before they are
    stopped.

    The folder is removed, except after a user error, whose message may name a log in it, and after an interrupted stop:
    the guards need the folder to end the gateway."""
    folder = Path(tempfile.mkdtemp(prefix="lookahead-"))
    is_needed = False
    try:
        running = start(folder)
        try:
            yield running
        finally:
            is_needed = True
            on_stop()
            running.stop()
            is_needed = False
    except UserError:
        is_needed = True
        raise
    finally:
        if not is_needed:
            shutil.rmtree(folder)
