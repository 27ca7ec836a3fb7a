"""Fleets and their workers check more often what has ended."""

from __future__ import annotations

import pytest

from pipeline.dynamo import fleet, servers


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "_POLL_S", 0.001)
    monkeypatch.setattr(servers, "_POLL_S", 0.001)
