"""Folders for engines and caches that a test has for itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pipeline.config.folders import Folders, folders


def own_folders(folder: Path) -> Folders:
    """Engines and caches of a test's own, below a folder."""
    return replace(folders(), engines=folder / "engines", cache=folder / "cache")
