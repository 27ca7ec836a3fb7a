"""Engines of a test of its own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pipeline.config.folders import Folders
from pipeline.engine.artifact import artifact_dir
from pipeline.engine.build import build_engine
from tests.own_folders import own_folders
from tests.unit.engine.builds import tiny


@pytest.fixture
def where(tmp_path: Path) -> Folders:
    return own_folders(tmp_path)


@pytest.fixture(scope="session")
def once_built(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """The latency engine of the tiny model, and the cache that its build leaves."""
    folders = own_folders(tmp_path_factory.mktemp("built"))
    build_engine(tiny(), folders)
    return folders


@pytest.fixture
def built(where: Folders, once_built: Folders) -> Path:
    """A copy of that engine for one test."""
    shutil.copytree(once_built.cache, where.cache)
    shutil.copytree(once_built.engines, where.engines)
    return artifact_dir(where, "tiny-random-llama", "latency")
