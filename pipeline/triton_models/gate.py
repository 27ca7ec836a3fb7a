"""Whether a server takes new requests, and whether any are running, told between processes by locks on two files.

A request is many calls from one model to another, and a tritonserver that was told to end refuses those too: so it must
not be told before the running requests are through. A lock ends with the process that holds it, so nothing stale stays
behind; it reaches into a container; and it needs no file of its own, as those of the model `lookahead_bls` will do.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pipeline.errors import BusyError
from pipeline.repository.names import CONFIG, FRONT_MODEL, VERSION

_CLOSING = Path(FRONT_MODEL, CONFIG)
_RUNNING = Path(FRONT_MODEL, VERSION, "model.py")
_POLL_S = 0.05


class Gate:
    """The server's side. Used from one thread. repository: the model repository that is being served."""

    def __init__(self, repository: Path) -> None:
        # Open for as long as the model lives: a lock belongs to the open file.
        self._closing = (repository / _CLOSING).open("rb")
        self._running = (repository / _RUNNING).open("rb")
        self._num_running = 0

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """One request, for the length of a block. Raises BusyError if the gate is closed."""
        try:
            # In this order: whoever closes the gate sees either this request or that it will be refused.
            if not self._num_running:
                fcntl.flock(self._running, fcntl.LOCK_SH | fcntl.LOCK_NB)
            self._num_running += 1
        except BlockingIOError:
            raise _closed() from None
        try:
            if self._is_closed():
                raise _closed()
            yield
        finally:
            self._num_running -= 1
            if not self._num_running:
                fcntl.flock(self._running, fcntl.LOCK_UN)

    def _is_closed(self) -> bool:
        try:
            fcntl.flock(self._closing, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self._closing, fcntl.LOCK_UN)
        return False


@contextmanager
def closed(repository: Path, patience_s: float) -> Iterator[bool]:
    """Keep new requests out for the length of a block, which begins when nothing runs any more or after patience_s.
    Yields whether nothing runs. A repository without the model has no gate."""
    if not (repository / _RUNNING).is_file():
        yield True
        return
    with (repository / _CLOSING).open("rb") as closing, (repository / _RUNNING).open("rb") as running:
        fcntl.flock(closing, fcntl.LOCK_EX)
        deadline = time.monotonic() + patience_s
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(running, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield True
                return
            if time.monotonic() > deadline:
                yield False
                return
            time.sleep(_POLL_S)


def _closed() -> BusyError:
    return BusyError("the server is being stopped or exchanged for another; send the request again in a minute")
