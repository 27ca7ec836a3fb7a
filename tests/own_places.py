"""Folders for engines and caches that a test has for itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pipeline.config.places import Places, places


def own_places(folder: Path) -> Places:
    """Engines and caches of a test's own, below a folder."""
    return replace(places(), engines=folder / "engines", cache=folder / "cache")
