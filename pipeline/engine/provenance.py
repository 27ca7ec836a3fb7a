"""Version of this program, versions of installed packages, and name of the processor."""

from __future__ import annotations

import functools
import importlib.metadata
import platform
import re
import subprocess
from pathlib import Path


def commit() -> str | None:
    """Commit of the checkout that the package runs from, with "-dirty" if files have changed; None without git."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None  # git is not installed
    return done.stdout.strip() if done.returncode == 0 else None


@functools.cache
def version_of(package: str) -> str | None:
    """Version of an installed package; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def cpu_name() -> str:
    """Name of this machine's processor, from Linux or else from Python."""
    try:
        names = re.findall(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()
