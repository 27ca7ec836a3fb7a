"""Checks of disk space before a download or a build, and atomic creation of folders."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pipeline.errors import UserError, error_number
from pipeline.files import existing_part

# Space that must stay free.
_SPARE_BYTES = 256 << 20

_ELSEWHERE = "Fix that, or point LOOKAHEAD_CACHE or LOOKAHEAD_ENGINES to another disk."

# Prefix of the names of unfinished folders.
PARTIAL = ".partial-"


def require_space(
    folder: Path,
    num_bytes: int,
    purpose: str,
    error: type[UserError],
    moved_by: str = "LOOKAHEAD_CACHE or LOOKAHEAD_ENGINES",
) -> None:
    """Raise `error` if the disk of `folder` has less than num_bytes (and a margin) free. moved_by: environment
    variables that set the folder."""
    free = shutil.disk_usage(existing_part(folder)).free
    if free < num_bytes + _SPARE_BYTES:
        raise error(
            f"{purpose} needs about {gigabytes(num_bytes + _SPARE_BYTES)} of disk in {folder}; "
            f"{gigabytes(free)} are free. Free some, or point {moved_by} to a larger disk."
        )


def gigabytes(num_bytes: int) -> str:
    """num_bytes as text, in units of 10^9 bytes."""
    return f"{num_bytes / 1e9:.1f} GB"


def link_or_copy(source: str | Path, target: str | Path) -> None:
    """Hard-link the file; copy it across disks, or where there are no hard links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def make_folder(folder: Path) -> None:
    """Create the folder and its parents. Raises UserError if that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"The folder {folder} cannot be created: {error.strerror}. {_ELSEWHERE}") from error


@contextmanager
def naming_full_disk(target: Path) -> Iterator[None]:
    """Raise UserError that names `target` if the disk becomes full in the block: errors of writes name no path."""
    try:
        yield
    except Exception as error:
        if not is_full(error):
            raise
        raise UserError(f"The disk of {target} is full. {_ELSEWHERE}") from error


@contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder. It is renamed to `target` if the block succeeds, and removed otherwise. An older target is
    replaced. Raises UserError if the folder cannot be created or the disk is full."""
    make_folder(target.parent)
    try:
        partial = Path(tempfile.mkdtemp(dir=target.parent, prefix=f"{PARTIAL}{target.name}-"))
    except OSError as error:
        raise UserError(f"{target.parent} cannot be written: {error.strerror}. {_ELSEWHERE}") from error
    try:
        with naming_full_disk(target):
            yield partial
            partial.chmod(0o755)  # mkdtemp makes folders private
            replace_folder(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which only one process can hold, and remove unfinished folders of killed processes."""
    make_folder(folder)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        for leftover in folder.glob(f"{PARTIAL}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        yield
    finally:
        os.close(handle)


def is_full(error: Exception) -> bool:
    """Whether the disk or the user's quota is full."""
    return error_number(error) in (errno.ENOSPC, errno.EDQUOT)


def replace_folder(source: Path, target: Path) -> None:
    """Rename source to target, also while other processes replace it. An existing target is moved aside first and
    removed last; it is moved back if the rename fails."""
    asides: list[Path] = []
    try:
        while True:
            try:
                return os.rename(source, target)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise
            asides.append(Path(tempfile.mkdtemp(dir=target.parent, prefix=f"{PARTIAL}{target.name}-")))
            with suppress(FileNotFoundError):  # another process has moved it
                os.rename(target, asides[-1] / "old")
    finally:
        for aside in asides:
            if not os.path.lexists(target):
                with suppress(OSError):
                    os.rename(aside / "old", target)
            shutil.rmtree(aside, ignore_errors=True)
