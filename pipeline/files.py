"""Atomic writing of files, the end of a log, the cache folder, and error numbers of the operating system."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path


def write_whole(path: Path, content: str | Iterable[bytes], private: bool = False) -> None:
    """Write a file atomically (text as UTF-8): write a temporary file beside it, flush it to disk, rename it. Readers
    find the old file or the new one. private: only the owner can read it. Raises OSError and then leaves no temporary
    file."""
    partial = partial_path(path)
    mode = 0o600 if private else 0o666
    try:
        with open(partial, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            for piece in [content.encode()] if isinstance(content, str) else content:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def partial_path(path: Path) -> Path:
    """A hidden name beside path that no other writer uses."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")


def log_tail(path: Path, num_lines: int = 20) -> str:
    """The last lines of a log."""
    try:
        return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-num_lines:])
    except FileNotFoundError:
        return ""


def cache_folder(environment: Mapping[str, str]) -> str:
    """Folder for downloads and compiled code, with `~` not expanded: LOOKAHEAD_CACHE, else a folder in XDG_CACHE_HOME,
    else one in ~/.cache."""
    cache = environment.get("XDG_CACHE_HOME") or "~/.cache"
    return environment.get("LOOKAHEAD_CACHE") or os.path.join(cache, "lookahead")


def error_number(error: Exception) -> int | None:
    """The operating system's number of an error, if it has one. Libraries written in Rust have error classes of their
    own, with the number in the text."""
    if isinstance(error, OSError):
        return error.errno
    found = re.search(r"\(os error (\d+)\)", str(error))
    return int(found[1]) if found else None
