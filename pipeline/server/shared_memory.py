"""Shared memory regions of a server, in /dev/shm. Standard library only, because the guard uses it."""

from __future__ import annotations

import glob
from contextlib import suppress
from pathlib import Path


def shm_files(prefix: str) -> list[Path]:
    """Shared memory regions whose names start with prefix."""
    return [Path(name) for name in glob.glob(f"/dev/shm/{glob.escape(prefix)}*")]


def make_private(prefix: str) -> None:
    """Make shared memory regions unreadable for other users. Triton makes them readable for all, whatever the umask. It
    creates them when it loads models, so before the first request."""
    for path in shm_files(prefix):
        with suppress(FileNotFoundError):
            if not path.is_symlink() and path.stat().st_mode & 0o077:
                path.chmod(0o600)


def remove_shm(prefix: str) -> None:
    for path in shm_files(prefix):
        path.unlink(missing_ok=True)
