"""A second run folder joins the fleet of the first one, as another machine would that shares the discovery folder."""

from __future__ import annotations

from pathlib import Path

import openai
import pytest

from pipeline.config.folders import Folders
from pipeline.dynamo.fleet import Fleet, check_fleet, openai_url, start_fleet
from pipeline.server.discovery import FILE_KV
from pipeline.server.metrics import read_metrics
from tests.integration.servers import prepared
from tests.patience import PATIENCE_S
from tests.servers import wait_for

pytestmark = [pytest.mark.triton, pytest.mark.slow]


def output_tokens(fleet: Fleet) -> float:
    return read_metrics(fleet.state.metrics_url)["lookahead_output_tokens_total"]


def test_a_machine_that_joins_gets_requests_and_may_leave(
    shared_where: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = prepared(shared_where, "server.openai=true", "drafting.planner=fixed")
    monkeypatch.setenv(FILE_KV, str(tmp_path / "shared"))
    monkeypatch.setenv("DYN_TCP_RPC_HOST", "127.0.0.1")
    monkeypatch.setenv("DYN_TCP_RESPONSE_STREAM_HOST", "lo")
    check_fleet(served.resolved, join=True)
    first = start_fleet(served, shared_where, tmp_path / "first")
    try:
        client = openai.OpenAI(
            base_url=openai_url(tmp_path / "first"), api_key="none", max_retries=0, timeout=PATIENCE_S
        )

        def answers() -> list[str]:
            asked = {"model": "tiny-random-llama", "max_tokens": 8, "seed": 5}
            return [client.completions.create(prompt=f"{n} words", **asked).choices[0].text for n in range(8)]

        # Tokens are counted a little after the end of their request.
        alone, before = answers(), wait_for(lambda: (found := output_tokens(first)) >= 64 and found)
        second = start_fleet(served, shared_where, tmp_path / "second", join=True)
        try:
            together = answers()
            wait_for(lambda: output_tokens(first) + output_tokens(second) >= before + 64)
            both = output_tokens(second)
        finally:
            second.stop()
        assert openai_url(tmp_path / "second") is None
        assert 0 < both < 64
        assert output_tokens(first) == before + 64 - both
        assert alone == together == answers()
    finally:
        first.stop()
