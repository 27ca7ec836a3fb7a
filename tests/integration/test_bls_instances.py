"""A server with several processes of the BLS model."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpx
import pytest

from pipeline.dynamo import fleet_switch
from pipeline.triton_models.handover import HANDOVER, hand_over
from tests.integration.gateway_requests import url_of
from tests.integration.servers import num_cancelled, prepared, running
from tests.patience import PATIENCE_S
from tests.servers import wait_for

pytestmark = [pytest.mark.triton, pytest.mark.slow]


def test_a_request_that_is_left_ends_whichever_process_gets_its_stop(shared_where, tmp_path) -> None:
    served = prepared(shared_where, "scheduling.bls_instances=3")
    with running(served, shared_where, tmp_path / "run") as server:

        def leave(number: int) -> int:
            body = {"text_input": f"the rat {number}", "max_tokens": 4000, "end_id": -1, "strategy": "none"}
            headers = {"x-request-timeout": "0.2"}
            return httpx.post(url_of(server), json=body, headers=headers, timeout=PATIENCE_S).status_code

        with ThreadPoolExecutor(4) as pool:
            assert set(pool.map(leave, range(12))) == {504}
        wait_for(lambda: num_cancelled(server) == 12)


def test_every_process_hands_its_learned_state_over(shared_where, tmp_path) -> None:
    served = prepared(shared_where, "scheduling.bls_instances=3")
    with running(served, shared_where, tmp_path / "run") as server:
        wake = partial(fleet_switch._wake, server.state)
        assert hand_over(tmp_path / "run" / HANDOVER, tmp_path / "new", wake, PATIENCE_S)
    assert len(list((tmp_path / "new").rglob("bls.state"))) == 3
