"""Requests are sent again without a pause."""

from __future__ import annotations

import pytest

from pipeline.gateway import front_end


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_end, "_RETRY_PAUSE_S", 0.001)
