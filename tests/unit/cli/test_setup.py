"""`setup.sh` with stand-ins for Pythons on PATH: choice of Python, new installation, messages."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from pipeline.config.folders import folders
from tests.patience import PATIENCE_S

SETUP = folders({}).home / "setup.sh"
# Answers the question of what it is good for, makes "environments" that hold it, and notes pip's arguments.
PYTHON = """#!/bin/sh
case "$1 $2" in
    "-c "*) echo "{answer}" ;;
    "-m venv") [ "$3" = --clear ] && rm -rf "$4" && mkdir -p "$4/bin" && cp "$0" "$4/bin/python" && echo made >>log ;;
    "-m compileall") echo "$*" >>bytecode ;;
    "-m pip")
        case "$*" in *"--upgrade pip") echo "$*" >>upgrades ;; *) echo installed >>log; echo "$*" >>pip ;; esac
        exit {pip}
        ;;
esac
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project with nothing but the files that are looked at, and an empty PATH for Pythons."""
    project = tmp_path / "a project"
    (project / "bin").mkdir(parents=True)
    for name in ("pyproject.toml", "constraints.txt"):
        (project / name).touch()
    for tool in ("cat", "rm", "mkdir", "cp", "sh"):
        found = shutil.which(tool)
        assert found is not None
        (project / "bin" / tool).symlink_to(found)
    return project


def add(folder: Path, name: str, answer: str, pip: int = 0) -> None:
    path = folder / "bin" / name
    path.write_text(PYTHON.format(answer=answer, pip=pip))
    path.chmod(0o755)


def setup(folder: Path, *named: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(folder / "bin" / "sh"), str(SETUP), ".venv", *named],
        cwd=folder,
        env={"PATH": str(folder / "bin")},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def log(folder: Path) -> list[str]:
    return (folder / "log").read_text().split()


def test_it_installs_once_and_again_when_the_requirements_changed(folder):
    add(folder, "python3", "serves 3.11")
    assert setup(folder).returncode == 0
    assert setup(folder).returncode == 0
    assert log(folder) == ["made", "installed"]

    stamp = (folder / ".venv" / ".installed").stat()
    os.utime(folder / "constraints.txt", (stamp.st_atime + 5, stamp.st_mtime + 5))
    assert "Updating the packages in .venv." in setup(folder).stderr
    assert log(folder) == ["made", "installed", "installed"]
    assert ["--quiet" in line for line in (folder / "pip").read_text().splitlines()] == [False, True]


def test_a_new_environment_gets_a_newer_pip_and_bytecode_that_pip_does_not_write(folder):
    add(folder, "python3", "serves 3.11")
    for _ in range(2):
        assert setup(folder).returncode == 0
    assert len((folder / "upgrades").read_text().splitlines()) == 1
    assert "--no-compile" in (folder / "pip").read_text()
    assert (folder / "bytecode").read_text() == "-m compileall -qq .venv/lib\n"


def test_development_tools_come_with_dev_only(folder):
    add(folder, "python3", "serves 3.11")
    setup(folder)
    assert "dev" not in (folder / "pip").read_text()
    for _ in range(2):
        assert setup(folder, "", "dev").returncode == 0
    assert ".[dynamo,dev]" in (folder / "pip").read_text()
    assert setup(folder).returncode == 0
    assert log(folder) == ["made", "installed", "installed"]

    # A plain setup after a change has no development tools to vouch for.
    stamp = (folder / ".venv" / ".installed").stat()
    os.utime(folder / "constraints.txt", (stamp.st_atime + 5, stamp.st_mtime + 5))
    setup(folder)
    os.utime(folder / "constraints.txt", (0, 0))
    setup(folder, "", "dev")
    assert log(folder) == ["made", *["installed"] * 4]


def test_a_moved_project_and_one_whose_setup_failed_start_from_nothing(folder):
    add(folder, "python3", "serves 3.11")
    setup(folder)
    moved = folder.rename(folder.with_name("moved"))
    assert setup(moved).returncode == 0
    assert log(moved) == ["made", "installed"] * 2

    add(moved, "python3", "serves 3.11", pip=1)
    shutil.rmtree(moved / ".venv")
    done = setup(moved)
    assert done.returncode == 2
    assert "The packages could not be installed" in done.stderr
    add(moved, "python3", "serves 3.11")
    setup(moved)
    assert log(moved) == [*["made", "installed"] * 2, "made", "made", "installed"]


@pytest.mark.parametrize("first", ["wrong 3.13", "venvless 3.11", "builds 3.11"])
def test_the_first_python_that_can_do_everything_is_taken_and_named(folder, first):
    add(folder, "python3", first)
    (folder / "bin" / "python3.12").write_text("#!/bin/sh\nexit 127\n")  # a shim for a version that is not installed
    (folder / "bin" / "python3.12").chmod(0o755)
    add(folder, "python3.10", "serves 3.10")

    done = setup(folder)

    assert done.returncode == 0
    assert done.stderr == f"Using python3.10; python3 is {first.split()[1]}.\n"
    assert "serves 3.10" in (folder / ".venv" / "bin" / "python").read_text()


def test_without_the_library_for_the_server_a_python_will_do(folder):
    add(folder, "python3", "builds 3.11")
    done = setup(folder)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("pythons", "named", "message"),
    [
        ({}, (), "Python 3.10, 3.11 or 3.12 is needed; python3 does not run. Install one"),
        ({"python3": "wrong 3.13", "python": "wrong 3.9"}, (), "python3 is 3.13, python is 3.9. Install one"),
        ({"python3": "serves 3.11", "mine": "wrong 3.14"}, ("mine",), "is needed; mine is 3.14. Install one"),
        ({"python3": "serves 3.11"}, ("my python",), "is needed; my python does not run. Install one"),
        ({"python3": "venvless 3.11"}, (), "python3 cannot make virtual environments: it lacks ensurepip."),
    ],
)
def test_no_suitable_python_is_reported_in_one_sentence(folder, pythons, named, message):
    for name, answer in pythons.items():
        add(folder, name, answer)
    done = setup(folder, *named)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr
    assert not (folder / ".venv").exists()


def test_a_named_python_that_does_not_run_prints_its_reason(folder):
    (folder / "bin" / "python3.12").write_text("#!/bin/sh\necho 'python3.12 is in version 3.12.1' >&2; exit 127\n")
    (folder / "bin" / "python3.12").chmod(0o755)
    done = setup(folder, "python3.12")
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == "python3.12 is in version 3.12.1"
    assert "python3.12 does not run" in done.stderr
