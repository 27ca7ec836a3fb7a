"""Files that appear whole or not at all, and the end of a log."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from pathlib import Path


def write_whole(path: Path, content: str | Iterable[bytes]) -> None:
    """Write a file (text as UTF-8) under another name beside it, flush it to disk and rename it: readers find the old
    file or the new one, never a part. Raises OSError, and leaves nothing behind then."""
    partial = partial_path(path)
    try:
        with partial.open("xb") as file:
            for piece in [content.encode()] if isinstance(content, str) else content:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def partial_path(path: Path) -> Path:
    """A hidden name beside path that no other writer has."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")


def log_tail(path: Path, num_lines: int = 20) -> str:
    """The last lines of a log."""
    try:
        return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-num_lines:])
    except FileNotFoundError:
        return ""
