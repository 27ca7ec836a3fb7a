"""Requests are sent again without a pause. The tenant `alice`."""

from __future__ import annotations

import pytest

from pipeline.config.schema import GatewayConfig
from pipeline.gateway import front_end
from pipeline.gateway.tenants import Tenant, Tenants
from tests.unit.gateway.gateways import api_key


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_end, "_RETRY_PAUSE_S", 0.001)


@pytest.fixture
def alice() -> Tenant:
    return Tenants([api_key("alice")], GatewayConfig()).of_key("alice")
