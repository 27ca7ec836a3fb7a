"""Processes killed under load: every response equals the undisturbed one."""

from __future__ import annotations

import pytest

from pipeline.config.folders import Folders
from pipeline.dynamo.failover import verify_failover
from pipeline.dynamo.fleet import openai_url, start_fleet
from tests.integration.servers import prepared
from tests.soak.conftest import IS_LONG

pytestmark = [
    pytest.mark.triton,
    pytest.mark.slow,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(not IS_LONG, reason="minutes of waiting for servers: `make soak`"),
]


def test_a_killed_worker_and_a_killed_server_change_no_token(where: Folders, tmp_path):
    overrides = ("server.openai=true", "server.gateway.enabled=true", "server.replicas=2", "server.max_restarts=20")
    fleet = start_fleet(prepared(where, *overrides), where, tmp_path)
    try:
        url = openai_url(tmp_path)
        assert url is not None
        report = verify_failover(fleet, url, "tiny-random-llama", 20, 400, lambda text: None)
    finally:
        fleet.stop()

    assert report.differences == []
    assert report.failures == []
    assert report.num_kills == 20
    assert report.num_requests > 2
