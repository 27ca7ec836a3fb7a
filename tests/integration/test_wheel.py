"""The wheel in an empty folder: it builds reproducibly, and everything works without a checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from pipeline.config.folders import CODE
from pipeline.decoding.compile_cache import VARIABLE, cache_path
from tests.patience import PATIENCE_S

# Eight commands, one after the other, take more than five minutes on a busy machine.
pytestmark = [pytest.mark.triton, pytest.mark.slow, pytest.mark.timeout(3 * PATIENCE_S)]


def build(kind: str, folder: Path) -> Path:
    """Build a wheel or sdist of the checkout into a folder."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)]
    subprocess.run(command, cwd=CODE, check=True, capture_output=True)
    (found,) = folder.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return found


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel, and the packages of this one except for the checkout."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=False)
    executable = folder / "bin" / "python"
    wheel = build("wheel", tmp_path_factory.mktemp("dist"))
    paths = {"base": str(folder), "platbase": str(folder)}
    site = Path(sysconfig.get_path("purelib", vars=paths))
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(executable), "install", "--no-deps", "--no-index", str(wheel)],
        check=True,
        capture_output=True,
    )
    # A plain path: .pth files in that folder, such as that of the editable checkout, are not read.
    packages = [path for path in sys.path if Path(path).name == "site-packages"]
    packages.append(str(CODE / "research"))  # its metadata lies among the packages
    (site / "packages.pth").write_text("\n".join(packages))
    return executable


def lookahead(python: Path, work: Path, *arguments: str) -> str:
    """Run the installed command in a folder; return what it prints."""
    hidden = ("PYTHONPATH", "LOOKAHEAD_HOME", "LOOKAHEAD_ENGINES")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    # Machine code is found by a hash of the sources, so the wheel holds all of them and need not compile them again.
    environment |= {"LOOKAHEAD_CACHE": str(work / "cache"), VARIABLE: str(cache_path().parent)}
    command = [str(python.with_name("lookahead")), *arguments]
    done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_two_builds_are_the_same_bytes(kind: str, tmp_path: Path) -> None:
    first, second = (build(kind, tmp_path / name).read_bytes() for name in ("first", "second"))
    assert first == second


def test_a_checkpoint_folder_is_served_from_an_empty_folder(python: Path, tmp_path: Path) -> None:
    own = tmp_path / "configs" / "models"
    own.mkdir(parents=True)
    shipped = lookahead(python, tmp_path, "models")
    assert "llama2-13b" in shipped
    assert "own-model" not in shipped
    (own / "own-model.yaml").write_text((CODE / "configs/models/tiny-random-llama.yaml").read_text())
    assert "own-model" in lookahead(python, tmp_path, "models")
    options = ("--set", "device=cpu", "--set", "backend=torch")
    built = lookahead(python, tmp_path, "engine", "-m", "own-model", *options)
    assert str(tmp_path / "engines" / "own-model") in built

    (checkpoint,) = (tmp_path / "cache" / "random").iterdir()
    (tmp_path / "checkpoint").symlink_to(checkpoint)
    ports = [word for name in ("http", "grpc", "metrics", "openai") for word in ("--set", f"server.{name}_port=0")]
    lookahead(python, tmp_path, "serve", "-m", "./checkpoint", "--background", *options, *ports)
    try:
        assert "checkpoint" in lookahead(python, tmp_path, "status")
        lookahead(python, tmp_path, "generate", "Hello", "--max-tokens", "4")
    finally:
        lookahead(python, tmp_path, "stop")
