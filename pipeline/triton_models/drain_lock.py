"""File locks with which a process drains a server: new requests are refused, running ones finish.

A request makes many calls from one model to another. A tritonserver that is shutting down refuses those calls too, so
the running requests must finish before the shutdown begins. The system releases a file lock when its process ends, so
no stale lock remains. File locks also work between a container and its host. The locked files are in the server's
handover folder: the model repository may be rendered again while it is served.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryFile

from pipeline.errors import BusyError
from pipeline.files import try_lock
from pipeline.triton_models.handover import CLOSING, RUNNING

_POLL_S = 0.05


class DrainLock:
    """The server's side. Not thread safe. folder: the server's handover folder; None if this program did not start the
    server, and so will not drain it."""

    def __init__(self, folder: Path | None) -> None:
        self._closing, self._running = (
            TemporaryFile() if folder is None else (folder / name).open("rb")  # noqa: SIM115  # a lock needs an open file
            for name in (CLOSING, RUNNING)
        )
        self._num_running = 0

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Count one running request while the block runs. Raises BusyError while the server drains."""
        # Count first, check second: then a draining process waits for this request, or the request is refused.
        if not self._num_running and not try_lock(self._running, shared=True):
            raise _refusal()
        self._num_running += 1
        try:
            if self._is_draining():
                raise _refusal()
            yield
        finally:
            self._num_running -= 1
            if not self._num_running:
                fcntl.flock(self._running, fcntl.LOCK_UN)

    def _is_draining(self) -> bool:
        if not try_lock(self._closing, shared=True):
            return True
        fcntl.flock(self._closing, fcntl.LOCK_UN)
        return False


@contextmanager
def drained(folders: Sequence[Path], patience_s: float) -> Iterator[list[bool]]:
    """Refuse new requests to the servers with these handover folders while the block runs. The block begins when all
    running requests have ended, or after patience_s. Yields for each server whether all have ended; True for a server
    without the model `lookahead_bls`."""
    with ExitStack() as files:
        closing, running = (
            [files.enter_context((folder / name).open("rb")) for folder in folders] for name in (CLOSING, RUNNING)
        )
        for file in closing:
            fcntl.flock(file, fcntl.LOCK_EX)
        deadline = time.monotonic() + patience_s
        while not all(have_ended := [try_lock(file) for file in running]) and time.monotonic() <= deadline:
            time.sleep(_POLL_S)
        yield have_ended


def _refusal() -> BusyError:
    return BusyError("the server is being stopped or exchanged for another; send the request again in a minute")
