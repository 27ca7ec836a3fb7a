"""Versions in fingerprints, artifacts and measurements."""

from __future__ import annotations

import platform
import subprocess
from importlib import metadata
from pathlib import Path

import pipeline
from pipeline.engine.fingerprint import TOKEN_CODE, code_digest, commit, cpu_name, version_of


def test_the_commit_is_that_of_the_checkout_if_there_is_one() -> None:
    folder = str(Path(pipeline.__file__).parent)
    head = subprocess.run(["git", "-C", folder, "rev-parse", "HEAD"], capture_output=True, text=True)
    assert (commit() or "").removesuffix("-dirty") == head.stdout.strip()


def test_an_installed_package_does_not_have_the_commit_of_the_project_around_it(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        author = ("-c", "user.name=a", "-c", "user.email=a@example.com")
        command = ["git", "-C", str(tmp_path), *author, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    file = tmp_path / "fingerprint.py"
    file.touch()
    git("init")
    git("commit", "--allow-empty", "-m", "first")
    assert commit(file) is None
    git("add", file.name)
    git("commit", "-m", "second")
    assert commit(file) == git("rev-parse", "HEAD")
    file.write_text("x = 1")
    assert commit(file) == git("rev-parse", "HEAD") + "-dirty"


def test_a_package_has_a_version_or_is_not_there() -> None:
    assert version_of("numpy") == metadata.version("numpy")
    assert version_of("no-such-package") is None


def test_a_change_of_code_that_tokens_depend_on_changes_its_digest(tmp_path: Path) -> None:
    def digest() -> str:
        return code_digest.__wrapped__(tmp_path)

    (tmp_path / "engine" / "torch").mkdir(parents=True)
    (tmp_path / "cli").mkdir()
    digests = [digest()]
    for change in ("engine/torch/a.py", "engine/torch/b.py", "cli/a.py", "engine/note.txt"):
        (tmp_path / change).write_text("x = 1")
        digests.append(digest())
    (tmp_path / "engine/torch/a.py").rename(tmp_path / "engine/torch/c.py")
    digests.append(digest())

    assert len(set(digests[:3])) == 3
    assert digests[2] == digests[3] == digests[4] != digests[5]


def test_the_folders_of_the_code_exist() -> None:
    package = Path(pipeline.__file__).parent
    assert all(any((package / folder).glob("*.py")) for folder in TOKEN_CODE)


def test_processors_of_one_name_differ_by_family_and_model(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    core = "processor\t: {}\ncpu family\t: 25\nmodel\t\t: {}\nmodel name\t: AMD EPYC\n\n"
    cpuinfo.write_text(core.format(0, 17) + core.format(1, 17))
    assert cpu_name(cpuinfo) == "AMD EPYC (family 25, model 17)"
    cpuinfo.write_text(core.format(0, 1))
    assert cpu_name(cpuinfo) == "AMD EPYC (family 25, model 1)"


def test_processors_of_one_model_differ_by_the_instructions_that_a_virtual_machine_shows(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(
        "cpu family\t: 6\nmodel\t\t: 207\nmodel name\t: Xeon\nflags\t\t: fpu avx avx2 avx512f amx_int8\n"
    )
    assert cpu_name(cpuinfo) == "Xeon (family 6, model 207, avx2 avx512f amx_int8)"


def test_without_a_name_in_cpuinfo_the_processor_has_that_of_python(tmp_path: Path) -> None:
    expected = platform.processor() or platform.machine()
    assert cpu_name(tmp_path / "missing") == expected
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nBogoMIPS\t: 50.00\nCPU part\t: 0xd0c\n")
    assert cpu_name(cpuinfo) == expected
