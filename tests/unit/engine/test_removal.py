"""Engines and leftovers are removed, but not engines in use."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config.folders import Folders
from pipeline.engine.artifact import build_lock
from pipeline.engine.removal import removable, remove, require_unused, sizes_of
from pipeline.errors import BuildError


def test_clean_finds_engines_and_leftovers_only(built: Path, where: Folders) -> None:
    (built.parent / ".partial-latency-x").mkdir()
    (built.parent / "notes").mkdir()
    (built.parent / "balanced.plan.json").write_text("{}")
    found = {path.name for path in removable(where, None, cache=True)}
    assert found == {"latency", ".partial-latency-x", "balanced.plan.json", "random"}
    with pytest.raises(BuildError, match="no engines of 'other'"):
        removable(where, "other", cache=False)
    remove(removable(where, "tiny-random-llama", cache=False))
    assert {path.name for path in built.parent.iterdir()} == {"notes"}


def test_an_engines_folder_that_cannot_be_read_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    folders = Folders(tmp_path, tmp_path / "engines", tmp_path)
    assert removable(folders, None, cache=False) == []
    folders.engines.touch()  # no folder, because root may read every folder
    with pytest.raises(NotADirectoryError):
        removable(folders, None, cache=False)


def test_clean_leaves_what_is_served_or_being_built(built: Path, where: Folders) -> None:
    folders = removable(where, None, cache=True)
    require_unused(where, folders, None)
    require_unused(where, folders, where.engines / "another" / "latency" / "repository")
    with pytest.raises(BuildError, match=r"latency is being served\. Stop"):
        require_unused(where, folders, built / "repository")
    with (
        build_lock(where, "tiny-random-llama", pytest.fail),
        pytest.raises(BuildError, match="An engine of tiny-random-llama is being built"),
    ):
        require_unused(where, folders, None)
    require_unused(where, folders, None)


def test_files_that_profiles_share_count_once(tmp_path: Path) -> None:
    folders = [tmp_path / "latency", tmp_path / "throughput"]
    for folder in folders:
        folder.mkdir()
    (folders[0] / "weights").write_bytes(bytes(1000))
    (folders[1] / "weights").hardlink_to(folders[0] / "weights")
    (folders[1] / "plan").write_bytes(bytes(10))
    assert sizes_of(folders) == [0, 1010]
    assert sizes_of(folders[:1]) == [1000]
    assert sizes_of([folders[1] / "plan"]) == [10]


def test_a_link_to_a_file_of_another_folder_frees_nothing_and_may_be_broken(tmp_path: Path) -> None:
    """The artifacts of a user who cannot write the shared engines consist of such links."""
    own, shared = tmp_path / "own", tmp_path / "shared"
    own.mkdir()
    shared.write_bytes(bytes(1000))
    (own / "weights").symlink_to(shared)
    (own / "config").symlink_to(tmp_path / "removed")
    assert sizes_of([own]) == [0]
