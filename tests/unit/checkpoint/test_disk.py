"""Folders are complete or do not exist."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from pathlib import Path
from typing import NoReturn

import pytest
from safetensors import SafetensorError

from pipeline.checkpoint.disk import PARTIAL, atomic_folder, locked_folder, make_folder, require_space
from pipeline.checkpoint.hashing import cached_sha256
from pipeline.errors import BuildError, UserError
from tests.command_line import exit_code

NO_SPACE = OSError(errno.ENOSPC, "No space left on device")


def fail(error: Exception) -> NoReturn:
    raise error


def test_folder_appears_at_the_end_and_replaces_an_older_one(tmp_path: Path) -> None:
    target = tmp_path / "target"
    for text in ("old", "new"):
        with atomic_folder(target) as partial:
            (partial / "file").write_text(text, encoding="utf-8")
            assert text == "new" or not target.exists()
    assert (target / "file").read_text(encoding="utf-8") == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def test_failure_keeps_the_old_folder_and_leaves_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()

    def fail_half_way() -> None:
        with atomic_folder(target) as partial:
            (partial / "file").write_text("half", encoding="utf-8")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    assert [path.name for path in tmp_path.iterdir()] == ["target"]
    assert list(target.iterdir()) == []


def test_two_processes_may_replace_a_folder_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two commands for one engine both write its model repository."""
    target, rename = tmp_path / "target", os.rename
    (target / "old").mkdir(parents=True)
    others = iter([False, True])  # what the other process does when this one moves the target aside

    def renamed(source: Path, to: Path) -> None:
        if source != target:
            return rename(source, to)
        if next(others):  # it has just moved the target itself
            shutil.rmtree(target)
            return rename(source, to)
        rename(source, to)
        (target / "of the other").mkdir(parents=True)  # it is done
        return None

    monkeypatch.setattr(os, "rename", renamed)
    with atomic_folder(target) as partial:
        (partial / "new").touch()

    assert [path.name for path in target.iterdir()] == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def test_an_interruption_between_both_renames_keeps_the_old_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, rename = tmp_path / "target", os.rename
    (target / "old").mkdir(parents=True)

    def renamed(source: Path, to: Path) -> None:
        rename(source, to)
        if source == target:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", renamed)
    with pytest.raises(KeyboardInterrupt), atomic_folder(target) as partial:
        (partial / "new").touch()

    assert [path.name for path in target.iterdir()] == ["old"]
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def test_space_is_looked_up_on_the_disk_of_a_folder_that_is_still_to_be_made(tmp_path: Path) -> None:
    require_space(tmp_path / "a" / "b", 1, "A test", BuildError)
    with pytest.raises(BuildError, match="A test needs about"):
        require_space(tmp_path / "a" / "b", 1 << 60, "A test", BuildError)


@pytest.mark.parametrize(
    "error",
    [
        NO_SPACE,
        # As the libraries in Rust say it: safetensors, tokenizers.
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
        Exception("No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_is_a_sentence_for_every_writer(error: Exception, tmp_path: Path) -> None:
    def fill() -> None:
        with atomic_folder(tmp_path / "target") as partial:
            (partial / "half").touch()
            fail(error)

    with pytest.raises(UserError, match=r"The disk of .*target is full"):
        fill()
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be created: Not a directory"):
        make_folder(tmp_path / "file" / "below")


def test_a_full_disk_ends_a_command_with_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pipeline.cli.app.build_app", lambda: lambda **_: fail(NO_SPACE))
    assert exit_code() == 2
    assert capsys.readouterr().err.startswith("error: No space left on device")


def test_hashes_that_cannot_be_stored_only_cost_time(tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.write_bytes(bytes(16 << 20))
    no_folder = large
    assert cached_sha256(large, cache_dir=no_folder).startswith("080acf35")


def test_one_at_a_time_makes_something_and_leftovers_of_killed_ones_go(tmp_path: Path) -> None:
    (tmp_path / f"{PARTIAL}killed").mkdir()
    (tmp_path / "made").mkdir()
    done: list[str] = []

    def second() -> None:
        with locked_folder(tmp_path):
            done.append("second")

    with locked_folder(tmp_path):
        assert [path.name for path in tmp_path.iterdir()] == ["made"]
        waiting = threading.Thread(target=second)
        waiting.start()
        waiting.join(0.1)
        done.append("first")
    waiting.join()
    assert done == ["first", "second"]
