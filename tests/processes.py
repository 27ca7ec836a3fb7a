"""Processes that a test starts."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import Any


@contextmanager
def running(command: Sequence[str | PathLike[str]], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process for the length of a block, which is killed at its end. The block of `Popen` itself waits for the
    process, after a failed assertion too, and so without end."""
    with subprocess.Popen(command, **options) as process:
        try:
            yield process
        finally:
            process.kill()
