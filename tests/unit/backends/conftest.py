"""Folders of a test of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config.folders import Folders
from tests.own_folders import own_folders


@pytest.fixture
def where(tmp_path: Path) -> Folders:
    return own_folders(tmp_path)
