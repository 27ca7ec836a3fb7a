"""Duration of the soak: LOOKAHEAD_SOAK_S seconds, an hour in `make soak`, seconds in CI."""

from __future__ import annotations

import os
import random

import pytest

from pipeline.config.folders import Folders
from pipeline.server.startup import PreparedServer
from tests.integration.servers import prepared
from tests.own_folders import own_folders

SOAK_S = float(os.environ.get("LOOKAHEAD_SOAK_S", "30"))
IS_LONG = SOAK_S >= 600


@pytest.fixture(scope="package")
def where(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return own_folders(tmp_path_factory.mktemp("soak"))


@pytest.fixture(scope="package")
def served(where: Folders) -> PreparedServer:
    return prepared(where)


@pytest.fixture
def chance() -> random.Random:
    """Moments and victims. The seed is shown with a failure, and LOOKAHEAD_SOAK_SEED repeats it."""
    seed = int(os.environ.get("LOOKAHEAD_SOAK_SEED", random.randrange(1 << 32)))
    print(f"LOOKAHEAD_SOAK_SEED={seed}")
    return random.Random(seed)
