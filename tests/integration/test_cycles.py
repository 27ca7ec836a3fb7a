"""A server that ends while clients send requests. `make soak` repeats it at random moments."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config.folders import Folders
from pipeline.server.startup import PreparedServer
from tests.integration.cycles import live

pytestmark = [pytest.mark.triton, pytest.mark.slow]


@pytest.mark.parametrize("how", ["kill server", "drain"])
def test_start_and_end_under_requests(served: PreparedServer, shared_where: Folders, tmp_path: Path, how: str) -> None:
    live(served, shared_where, tmp_path, how, after_s=1.0)
