"""Folders appear whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.checkpoint.disk import require_space, whole_folder
from pipeline.errors import BuildError


def test_folder_appears_at_the_end_and_replaces_an_older_one(tmp_path: Path) -> None:
    target = tmp_path / "target"
    for text in ("old", "new"):
        with whole_folder(target) as partial:
            (partial / "file").write_text(text, encoding="utf-8")
            assert text == "new" or not target.exists()
    assert (target / "file").read_text(encoding="utf-8") == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def test_failure_keeps_the_old_folder_and_leaves_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()

    def fail_half_way() -> None:
        with whole_folder(target) as partial:
            (partial / "file").write_text("half", encoding="utf-8")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    assert [path.name for path in tmp_path.iterdir()] == ["target"]
    assert list(target.iterdir()) == []


def test_space_is_looked_up_on_the_disk_of_a_folder_that_is_still_to_be_made(tmp_path: Path) -> None:
    require_space(tmp_path / "a" / "b", 1, "A test", BuildError)
    with pytest.raises(BuildError, match="A test needs about"):
        require_space(tmp_path / "a" / "b", 1 << 60, "A test", BuildError)
