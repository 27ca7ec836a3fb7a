"""A script that replaces tritonserver."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.server.installation import VARIABLE
from pipeline.server.server import stop_server
from tests.unit.server.fake_server import hurry_guards, write


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "tritonserver"
    monkeypatch.setenv(VARIABLE, str(path))
    hurry_guards(monkeypatch)
    write(path)
    yield path
    stop_server(tmp_path / "run")
