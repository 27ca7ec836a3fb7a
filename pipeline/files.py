"""Reads and writes whole files, at paths or URLs, reads named arrays, and the end of a log. Guards import it, so it
imports few modules."""

from __future__ import annotations

import errno
import fcntl
import glob
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    import numpy.typing as npt

# Standard output, whatever a shell redirects it to.
STDOUT = Path("/dev/stdout")
# Less than a start writes: logs, state files and the files of a model card.
_LITTLE_SPACE = 1 << 20


def write_atomically(path: Path, content: str | Iterable[bytes], private: bool = False) -> None:
    """Write a file atomically (text as UTF-8): write a temporary file beside it, flush it to disk, rename it. Also
    removes temporary files of killed writers. A link is kept, and the file that it names is written; a pipe or a device
    is written directly. private: only the owner can read the file. Raises OSError, without leaving a temporary file."""
    if is_stream(path):
        return _write_stream(path, content)
    if path.is_symlink():
        path = path.resolve()
    with written_beside(path, content, private) as partial:
        partial.replace(path)
    return None


@contextmanager
def written_beside(path: Path, content: str | Iterable[bytes], private: bool = False) -> Iterator[Path]:
    """Write a temporary file beside path, as `write_atomically` does, and yield its name. The block may rename it to
    path, which needs no space. Otherwise it is removed."""
    partial, file = _partial_file(path, 0o600 if private else 0o666)
    try:
        with file:
            _remove_abandoned(path)
            try:
                file.writelines(_pieces(content))
                file.flush()
                os.fsync(file.fileno())
            except OSError as error:
                error.filename = error.filename or str(path)  # errors of writes name no file
                raise
            yield partial
    finally:
        partial.unlink(missing_ok=True)


def is_stream(path: Path) -> bool:
    """Whether path is standard output, a pipe or a device: another file must not take its place."""
    return path == STDOUT or (path.exists() and not path.is_file() and not path.is_dir())


def _write_stream(path: Path, content: str | Iterable[bytes]) -> None:
    # Opened by its name, a file to which a shell redirects standard output would begin again.
    with open(1, "wb", closefd=False) if path == STDOUT else path.open("wb") as stream:
        stream.writelines(_pieces(content))


def _pieces(content: str | Iterable[bytes]) -> Iterable[bytes]:
    return [content.encode()] if isinstance(content, str) else content


def _partial_file(path: Path, mode: int) -> tuple[Path, BinaryIO]:
    """Create a temporary file beside path. It is locked while it is open."""
    while True:
        partial = partial_path(path)
        file = open(partial, "xb", opener=lambda name, flags: os.open(name, flags, mode))  # noqa: SIM115  # for the caller
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return partial, file
        file.close()  # another writer removed it before it was locked


def _remove_abandoned(path: Path) -> None:
    """Remove the temporary files of killed writers of path. A running writer holds a lock on its file."""
    for found in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
        with suppress(OSError), found.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found.unlink()


def can_be_written(folder: Path) -> bool:
    """Whether this user can write files into a folder, which may not exist yet."""
    return os.access(existing_part(folder), os.W_OK | os.X_OK)


def existing_part(path: Path) -> Path:
    """The path, or else its closest parent that exists."""
    return next(part for part in (path, *path.parents) if part.exists())


def try_lock(file: IO[Any] | int, shared: bool = False) -> bool:
    """Lock an open file or descriptor, unless another one holds a conflicting lock. Returns whether it is locked now.
    The lock ends when the file is closed or its process ends."""
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def wait_for_lock(file: IO[Any] | int, on_busy: Callable[[], None]) -> None:
    """Lock an open file or descriptor as `try_lock` does. on_busy: called before the wait if another one holds the
    lock; may raise."""
    if not try_lock(file):
        on_busy()
        fcntl.flock(file, fcntl.LOCK_EX)


def is_url(location: str | Path) -> bool:
    """Whether a location is a URL, such as s3://bucket/key, rather than a path."""
    return isinstance(location, str) and "://" in location


def read_location(location: str | Path) -> bytes:
    """Content of a file at a path or at a URL of fsspec. Raises OSError with a reason."""
    if not is_url(location):
        with open(_encoded(str(location)), "rb") as local:
            return local.read()
    with _opened(str(location), "rb") as file:
        content: bytes = file.read()
    return content


def _encoded(path: str) -> bytes:
    """A path as the system takes it. Python in Triton's backend takes paths for ASCII; others are UTF-8 then."""
    try:
        return os.fsencode(path)
    except UnicodeEncodeError:
        return path.encode(errors="surrogateescape")


def write_location(location: str | Path, content: Iterable[bytes]) -> None:
    """Write a file at a path, as `write_atomically` does, or at a URL of fsspec. Raises OSError with a reason."""
    if not is_url(location):
        return write_atomically(Path(location), content)
    with _opened(str(location), "wb") as file:
        for piece in content:
            file.write(piece)
    return None


@contextmanager
def _opened(url: str, mode: str) -> Iterator[Any]:
    import fsspec

    try:
        with fsspec.open(url, mode) as file:
            yield file
    except (ImportError, ValueError) as error:  # a protocol without its package, or an unknown one
        raise OSError(errno.EPROTONOSUPPORT, str(error)) from error
    except FileNotFoundError as error:
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT)) from error
    except OSError as error:  # libraries of object stores leave the reason out of strerror
        raise OSError(error.errno or errno.EIO, error.strerror or str(error)) from error


def partial_path(path: Path) -> Path:
    """A hidden name beside path that no other writer uses. Raises OSError if path has no name, such as "." or ""."""
    if not path.name:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    return path.with_name(f".{path.name}.{os.urandom(4).hex()}.partial")


def log_tail(path: Path, num_lines: int = 20) -> str:
    """The last lines of a log, and a line about a full disk, on which a log lacks the reason of a failure."""
    lines: list[str] = []
    with suppress(FileNotFoundError):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()[-num_lines:]
    return "\n".join([*lines, *about_full_disk(path.parent)])


def end_of_log(path: Path) -> str:
    """The last lines of a log under its path, for the end of a message."""
    return f"End of {path}:\n{log_tail(path)}"


def about_full_disk(folder: Path) -> list[str]:
    """One line if hardly anything can be written into a folder, else none."""
    try:
        space = os.statvfs(folder)
    except FileNotFoundError:
        return []
    free = space.f_bavail * space.f_frsize
    if free >= _LITTLE_SPACE or not space.f_blocks:  # some file systems report no sizes
        return []
    return [f"The disk of {folder} has {free >> 10} KiB left. Free some; the log may lack the reason."]


def read_arrays(file: Path | BinaryIO) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an .npz file by name. Raises OSError, or ValueError if it is another file or damaged."""
    import numpy as np  # most users of this file need no arrays

    try:
        with np.load(file, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except OSError:
        raise
    except Exception as error:  # zipfile, zlib and numpy raise many classes, by version of Python
        raise ValueError(f"it holds no arrays, or is damaged: {error}") from error
