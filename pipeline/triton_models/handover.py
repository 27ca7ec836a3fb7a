"""Hands the learned state of a server to its successor, through a folder that both receive.

The old server writes it on request, while it keeps serving; the new one reads it before its first request. It needs no
setting: the folder is private to its user and is emptied when the new server is ready.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path

# Environment variable with the folder of a server.
VARIABLE = "LOOKAHEAD_HANDOVER"
_WANTED, _LEFT, _FOUND = "wanted", "left", "found"
_TAKES_PART, _SAVED = ".takes-part", ".saved"
_POLL_S = 0.1


class Handover:
    """The side of one process of a server. name: of the process among those of the server."""

    def __init__(self, name: str, environment: Mapping[str, str] = os.environ) -> None:
        folder = environment.get(VARIABLE)
        self._folder = None if folder is None else Path(folder)
        self._name = name
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / f"{name}{_TAKES_PART}").touch()

    @property
    def found(self) -> Path | None:
        """Folder of the previous server's learned state, if there is any."""
        found = None if self._folder is None else self._folder / _FOUND
        return found if found is not None and found.is_dir() else None

    def save_if_wanted(self, save: Callable[[Path], None]) -> None:
        """Save into the folder passed to `save`, if a successor has requested it."""
        if self._folder is None or not (self._folder / _WANTED).exists():
            return
        saved = self._folder / f"{self._name}{_SAVED}"
        if not saved.exists():
            save(self._folder / _LEFT)
            saved.touch()


def prepare_handover(folder: Path) -> None:
    """Make the folder of a server that is about to start, with nothing in it but what the one before has left."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for path in folder.iterdir():
        if path.name == _LEFT:
            shutil.rmtree(path)
        elif path.name != _FOUND:
            path.unlink()


def hand_over(old: Path, new: Path, nudge: Callable[[], None], patience_s: float) -> bool:
    """Let the server of the folder `old` write its learned state for the one that starts with the folder `new`.

    nudge: makes the old server check for the request. Returns whether all of its processes have saved in time.
    """
    if not old.is_dir():
        return False
    names = [path.name.removesuffix(_TAKES_PART) for path in old.glob(f"*{_TAKES_PART}")]
    for path in old.glob(f"*{_SAVED}"):
        path.unlink()
    shutil.rmtree(old / _LEFT, ignore_errors=True)
    (old / _LEFT).mkdir(mode=0o700)
    (old / _WANTED).touch()
    nudge()
    deadline = time.monotonic() + patience_s
    while not (is_saved := all((old / f"{name}{_SAVED}").exists() for name in names)) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    (old / _WANTED).unlink()
    new.mkdir(parents=True, exist_ok=True, mode=0o700)
    shutil.rmtree(new / _FOUND, ignore_errors=True)
    (old / _LEFT).rename(new / _FOUND)
    return is_saved and bool(names)


def forget_handover(folder: Path) -> None:
    """Remove what was left for a server that has read it."""
    shutil.rmtree(folder / _FOUND, ignore_errors=True)
