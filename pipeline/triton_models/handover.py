"""Transfer of learned state from a server to its successor, through files in a folder of each server. The folder also
has the locks of `drain_lock`.

The old server writes its state on request and continues to serve. The new server reads it before its first request.
The transfer needs no setting: the folders are private to the user, and the files are removed when the new server is
ready.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

# Environment variable with the path of a server's handover folder.
VARIABLE = "LOOKAHEAD_HANDOVER"
# Name of the handover folder in a server's run folder.
HANDOVER = "handover"
# Files and folders in a handover folder: the request to save, the saved state, the state of the previous server.
_WANTED, _LEFT, _FOUND = "wanted", "left", "found"
# Locked files, see `drain_lock`. The process that starts the server creates them, because it must be able to open them.
CLOSING, RUNNING = "closing", "running"
# Suffixes of files, by process: it participates, it has saved.
_TAKES_PART, _SAVED = ".takes-part", ".saved"
_POLL_S = 0.1


def handover_dir(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The handover folder of this process's server; None if the server was not started by this program."""
    folder = environment.get(VARIABLE)
    return None if folder is None else Path(folder)


class Handover:
    """Handover of one process of a server. name: unique among the processes of the server; also that of the folder to
    which the process saves."""

    def __init__(self, name: str, environment: Mapping[str, str] = os.environ) -> None:
        self._folder = handover_dir(environment)
        self._name = name
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / f"{name}{_TAKES_PART}").touch()

    @property
    def found(self) -> Path | None:
        """Folder with the previous server's learned state, in a folder for each of its processes; None if there is
        none."""
        found = None if self._folder is None else self._folder / _FOUND
        return found if found is not None and found.is_dir() else None

    def save_if_wanted(self, save: Callable[[Path], None]) -> None:
        """If a successor has requested the state, call `save` once with the folder to write to."""
        if self._folder is None or not (self._folder / _WANTED).exists():
            return
        saved = self._folder / f"{self._name}{_SAVED}"
        if not saved.exists():
            save(self._folder / _LEFT / self._name)
            with suppress(OSError):  # a full disk must not end the thread that watches the clients
                saved.touch()


def prepare_handover(folder: Path) -> None:
    """Create the handover folder of a server that is about to start. Removes all but its predecessor's state."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for path in folder.iterdir():
        if path.name == _LEFT:
            shutil.rmtree(path)
        elif path.name != _FOUND:
            path.unlink()
    for name in (CLOSING, RUNNING):
        (folder / name).touch()


def hand_over(old: Path, new: Path, wake: Callable[[], None], patience_s: float) -> bool:
    """Move the learned state of the running server with the handover folder `old` to the folder `new` of its successor.

    wake: makes a process of the old server check for the request. It is called until all have saved, because Triton
    chooses the process. patience_s: time limit for saving. Returns whether all processes have saved in time.
    """
    if not old.is_dir():
        return False
    names = [path.name.removesuffix(_TAKES_PART) for path in old.glob(f"*{_TAKES_PART}")]
    for path in old.glob(f"*{_SAVED}"):
        path.unlink()
    shutil.rmtree(old / _LEFT, ignore_errors=True)
    (old / _LEFT).mkdir(mode=0o700)
    (old / _WANTED).touch()
    deadline = time.monotonic() + patience_s
    while not (is_saved := all((old / f"{name}{_SAVED}").exists() for name in names)) and time.monotonic() < deadline:
        wake()
        time.sleep(_POLL_S)
    (old / _WANTED).unlink()
    new.mkdir(parents=True, exist_ok=True, mode=0o700)
    shutil.rmtree(new / _FOUND, ignore_errors=True)
    (old / _LEFT).rename(new / _FOUND)
    return is_saved and bool(names)


def forget_handover(folder: Path) -> None:
    """Remove the predecessor's state, once the new server has read it."""
    shutil.rmtree(folder / _FOUND, ignore_errors=True)
