"""Learned state is handed over to the next server through a folder."""

from __future__ import annotations

import errno
from itertools import count
from pathlib import Path

import pytest

from pipeline.triton_models.handover import (
    VARIABLE,
    Handover,
    forget_handover,
    hand_over,
    prepare_handover,
)
from tests.patience import PATIENCE_S


def server(folder: Path, *names: str) -> list[Handover]:
    prepare_handover(folder)
    return [Handover(name, {VARIABLE: str(folder)}) for name in names]


def write(name: str, folder: Path) -> None:
    folder.mkdir()
    (folder / "state").write_text(f"learnt by {name}")


def test_all_processes_leave_what_they_know_and_the_next_server_finds_it(tmp_path: Path) -> None:
    old = server(tmp_path / "old", "a", "b")

    def check_for_requests() -> None:
        for process, name in zip(old, "ab", strict=True):
            process.save_if_wanted(lambda folder, name=name: write(name, folder))  # type: ignore[misc]

    assert hand_over(tmp_path / "old", tmp_path / "new", check_for_requests, PATIENCE_S)

    (new,) = server(tmp_path / "new", "a")
    assert new.found is not None
    found = {path.parent.name: path.read_text() for path in new.found.rglob("state")}
    assert found == {"a": "learnt by a", "b": "learnt by b"}
    forget_handover(tmp_path / "new")
    assert new.found is None


def test_the_same_folder_serves_a_server_that_comes_after_the_other(tmp_path: Path) -> None:
    (old,) = server(tmp_path, "a")

    assert hand_over(tmp_path, tmp_path, lambda: old.save_if_wanted(lambda folder: write("a", folder)), PATIENCE_S)

    (new,) = server(tmp_path, "a")
    assert new.found is not None
    assert (new.found / "a" / "state").is_file()


def test_a_process_is_asked_each_time_once_and_may_answer_late(tmp_path: Path) -> None:
    (old,) = server(tmp_path / "old", "a")
    saved: list[Path] = []
    wakes = count()

    def wake() -> None:
        for _ in range(next(wakes) % 3):
            old.save_if_wanted(saved.append)

    old.save_if_wanted(saved.append)
    assert not saved
    for number in (1, 2):
        assert hand_over(tmp_path / "old", tmp_path / "new", wake, PATIENCE_S)
        assert len(saved) == number


def test_processes_of_one_model_are_woken_until_all_have_saved(tmp_path: Path) -> None:
    """Triton gives the request that wakes a model to any of its processes."""
    processes = iter(server(tmp_path / "old", "bls_0", "bls_1"))

    def wake() -> None:
        next(processes).save_if_wanted(lambda folder: write("bls", folder))

    assert hand_over(tmp_path / "old", tmp_path / "new", wake, PATIENCE_S)


def test_a_server_that_says_nothing_in_time_is_not_waited_for(tmp_path: Path) -> None:
    server(tmp_path / "old", "a")

    assert not hand_over(tmp_path / "old", tmp_path / "new", lambda: None, 0.05)
    assert not hand_over(tmp_path / "none", tmp_path / "new", lambda: None, 0.05)


def test_a_full_disk_does_not_end_the_process_that_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's thread that saves also cancels the requests of clients that have left."""
    (old,) = server(tmp_path, "a")
    (tmp_path / "wanted").touch()
    saved: list[Path] = []

    def full(path: Path, *arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "touch", full)
    old.save_if_wanted(saved.append)
    assert saved


def test_a_process_without_a_folder_does_nothing() -> None:
    alone = Handover("a", {})

    alone.save_if_wanted(lambda folder: write("a", folder))
    assert alone.found is None
