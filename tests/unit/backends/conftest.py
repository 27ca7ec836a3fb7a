"""Folders of a test of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config.places import Places
from tests.own_places import own_places


@pytest.fixture
def where(tmp_path: Path) -> Places:
    return own_places(tmp_path)
