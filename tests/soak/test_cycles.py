"""Servers that are started, killed and stopped at random moments: no client hangs, nothing is left behind."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from pipeline.config.folders import Folders
from pipeline.server.startup import PreparedServer
from tests.integration.cycles import WAYS, live
from tests.soak.conftest import IS_LONG

pytestmark = [pytest.mark.triton, pytest.mark.slow, pytest.mark.timeout(7200)]
NUM_CYCLES = 50 if IS_LONG else len(WAYS)


@pytest.mark.parametrize("number", range(NUM_CYCLES))
def test_start_and_end_under_requests(
    served: PreparedServer, where: Folders, tmp_path: Path, chance: random.Random, number: int
) -> None:
    live(served, where, tmp_path, WAYS[number % len(WAYS)], chance.uniform(0.0, 3.0))
