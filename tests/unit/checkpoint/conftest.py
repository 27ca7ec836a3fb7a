"""A good checkpoint of random weights."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pipeline.checkpoint.checkpoint import Checkpoint
from pipeline.checkpoint.fetch import fetch
from pipeline.config.schema import RandomCheckpoint
from tests.unit.checkpoint.sources import TINY, model_of


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return fetch(model_of(RandomCheckpoint(config=TINY)), tmp_path_factory.mktemp("cache"))


@pytest.fixture
def folder(made: Checkpoint, tmp_path: Path) -> Path:
    """A copy of a good checkpoint, to be spoilt."""
    return Path(shutil.copytree(made.folder, tmp_path / "checkpoint"))
