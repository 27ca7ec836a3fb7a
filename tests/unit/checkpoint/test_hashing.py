"""A cached hash is invalid after any change of the file."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from pipeline.checkpoint import hashing


@pytest.fixture(autouse=True)
def _remember_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "_REMEMBER_FROM_BYTES", 0)


def test_hash_is_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    assert hashing.cached_sha256(path, tmp_path / "cache") == hashlib.sha256(b"abc").hexdigest()
    monkeypatch.setattr(hashing, "file_sha256", lambda path: pytest.fail("hashed twice"))
    assert hashing.cached_sha256(path, tmp_path / "cache") == hashlib.sha256(b"abc").hexdigest()


def test_a_change_that_restores_size_and_time_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    before = path.stat()
    hashing.cached_sha256(path, tmp_path)
    while True:  # the file system's clock is coarse; a change within one tick would not be visible
        path.write_bytes(b"abd")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        if path.stat().st_ctime_ns != before.st_ctime_ns:
            break
    assert hashing.cached_sha256(path, tmp_path) == hashlib.sha256(b"abd").hexdigest()


def test_a_damaged_store_is_computed_again(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    (tmp_path / "hashes.json").write_text("{", encoding="utf-8")
    assert hashing.cached_sha256(path, tmp_path) == hashlib.sha256(b"abc").hexdigest()
