"""Engines of a test of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config.places import Places, places
from pipeline.engine.build import build_engine
from tests.unit.engine.builds import tiny


@pytest.fixture
def where(tmp_path: Path) -> Places:
    return Places(home=places({}).home, engines=tmp_path / "engines", cache=tmp_path / "cache")


@pytest.fixture
def built(where: Places) -> Path:
    """The latency engine of the tiny model."""
    return build_engine(tiny(), where).artifact.folder
