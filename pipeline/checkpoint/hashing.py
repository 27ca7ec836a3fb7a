"""SHA-256 of files, cached for large files until they change.

A cached hash is valid while device, inode, size, modification time and status-change time are unchanged. Programs
cannot set the status-change time, so a changed file is always hashed again.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path

from pipeline.files import write_atomically

# Smaller files are hashed every time, which takes milliseconds.
_REMEMBER_FROM_BYTES = 16 << 20
_MAX_REMEMBERED = 4096


def file_sha256(path: Path) -> str:
    """SHA-256 of the file in hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def cached_sha256(path: Path, cache_dir: Path) -> str:
    """As `file_sha256`, with a cache of large files' hashes in cache_dir/hashes.json."""
    stat = path.stat()
    if stat.st_size < _REMEMBER_FROM_BYTES:
        return file_sha256(path)
    key = f"{stat.st_dev}:{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ctime_ns}"
    store = cache_dir / "hashes.json"
    known = _read(store)
    if key not in known:
        digest = file_sha256(path)
        known = _read(store)  # another process may have added an entry
        known[key] = digest
        _write(store, dict(list(known.items())[-_MAX_REMEMBERED:]))
    return known[key]


def _read(store: Path) -> dict[str, str]:
    try:
        known = json.loads(store.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # an unreadable cache counts as empty
    return known if isinstance(known, dict) else {}


def _write(store: Path, known: dict[str, str]) -> None:
    with suppress(OSError):  # a read-only cache only costs time
        store.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(store, json.dumps(known))
