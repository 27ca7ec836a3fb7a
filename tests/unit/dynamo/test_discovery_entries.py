"""A worker's entries are restored after a suspension, and only then."""

from __future__ import annotations

import glob
from pathlib import Path

import pytest

from pipeline.dynamo.discovery_entries import DiscoveryEntries

MINE, OTHER = "lookahead%2Fbackend%2Fgenerate%2Fff", "lookahead%2Fbackend%2Fgenerate%2Ffe"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for bucket in ("instances", "mdc"):
        (tmp_path / "v1" / bucket).mkdir(parents=True)
        for name in (MINE, OTHER):
            (tmp_path / "v1" / bucket / name).write_text(f"{bucket} of {name}")
    return tmp_path


def remove(folder: Path) -> None:
    for path in folder.glob("v1/*/*"):
        path.unlink()


def held(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_entries_come_back_after_a_suspension(folder: Path) -> None:
    entries = DiscoveryEntries(folder, 255)
    entries.check(0.0)
    remove(folder)
    entries.check(20.0)

    assert held(folder) == {f"v1/{bucket}/{MINE}": f"{bucket} of {MINE}" for bucket in ("instances", "mdc")}


def test_they_come_back_too_if_they_go_a_moment_after_its_end(folder: Path) -> None:
    entries = DiscoveryEntries(folder, 255)
    entries.check(0.0)
    entries.check(20.0)
    remove(folder)
    entries.check(20.5)

    assert len(held(folder)) == 2


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
def test_a_jump_of_the_clock_restores_entries_and_not_for_an_hour(folder: Path, jump_s: float) -> None:
    entries = DiscoveryEntries(folder, 255)
    entries.check(10_000.0)
    entries.check(10_020.0)  # restored for a while
    remove(folder)
    now = 10_020.5 + jump_s
    entries.check(now)
    assert len(held(folder)) == 2

    for number in range(1, 70):
        entries.check(now + number / 2)
    remove(folder)
    entries.check(now + 35.0)
    assert held(folder) == {}


def test_entries_that_a_shutdown_removes_stay_removed(folder: Path) -> None:
    entries = DiscoveryEntries(folder, 255)
    entries.check(0.0)
    remove(folder)
    entries.check(0.5)

    assert held(folder) == {}


def test_a_folder_may_have_brackets_in_its_name(folder: Path) -> None:
    inside = folder / "run [1]"
    (inside / "v1" / "mdc").mkdir(parents=True)
    (inside / "v1" / "mdc" / MINE).touch()

    assert glob.glob(DiscoveryEntries(inside, 255).pattern) == [str(inside / "v1" / "mdc" / MINE)]
