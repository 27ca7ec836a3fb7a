"""Version of this program: the commit of its checkout and the versions of installed packages."""

from __future__ import annotations

import importlib.metadata
import subprocess
from pathlib import Path


def commit() -> str | None:
    """Commit of the checkout that the package runs from, marked if files were changed since; None without git."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None  # no git here; the commit is a convenience
    return done.stdout.strip() if done.returncode == 0 else None


def version_of(package: str) -> str | None:
    """None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
