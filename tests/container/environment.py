"""A Python environment with the transformers release of NVIDIA's containers, made once per checkout."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
CACHE = Path(__file__).parents[2] / ".container-packages"


def container_environment() -> dict[str, str]:
    """Environment variables with which this interpreter imports the container's packages in place of its own.

    They are installed by pip into a folder of the checkout, under a name that depends on the pinned versions and on the
    interpreter."""
    pins = f"{REQUIREMENTS.read_text(encoding='utf-8')} {sys.version_info[:2]}"
    folder = CACHE / hashlib.sha256(pins.encode()).hexdigest()[:16]
    if not folder.is_dir():
        CACHE.mkdir(exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=CACHE))
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        # Only a part of the packages is imported, so bytecode of all of them would take longer.
        options = ["--no-deps", "--no-compile", "--target", str(partial), "-r", str(REQUIREMENTS)]
        subprocess.run([*pip, *options], check=True)
        try:
            partial.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(partial)
    return os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}".rstrip(os.pathsep)}
