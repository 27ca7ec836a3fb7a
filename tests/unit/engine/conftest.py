"""Engines of a test of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config.places import Places
from pipeline.engine.build import build_engine
from tests.own_places import own_places
from tests.unit.engine.builds import tiny


@pytest.fixture
def where(tmp_path: Path) -> Places:
    return own_places(tmp_path)


@pytest.fixture
def built(where: Places) -> Path:
    """The latency engine of the tiny model."""
    return build_engine(tiny(), where).artifact.folder
