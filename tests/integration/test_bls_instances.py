"""A server with several processes of the BLS model."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpx
import pytest

from pipeline.dynamo import fleet_switch
from pipeline.triton_models.handover import HANDOVER, hand_over
from tests.integration.gateway_requests import url_of
from tests.integration.servers import LONG, num_cancelled, prepared, running, settled_metrics
from tests.patience import PATIENCE_S
from tests.servers import wait_for

pytestmark = [pytest.mark.triton, pytest.mark.slow]


def test_a_request_that_is_left_ends_whichever_process_gets_its_stop(shared_where, tmp_path) -> None:
    served = prepared(shared_where, "scheduling.bls_instances=3")
    with running(served, shared_where, tmp_path / "run") as server:

        def body(number: int) -> dict[str, object]:
            return {"text_input": f"the rat {number}", "max_tokens": LONG, "end_id": -1, "strategy": "none"}

        def be_late(number: int) -> int:
            headers = {"x-request-timeout": "0.2"}
            return httpx.post(url_of(server), json=body(number), headers=headers, timeout=PATIENCE_S).status_code

        def leave(number: int) -> None:
            sent = body(number) | {"stream": True}
            with httpx.stream("POST", url_of(server, "generate_stream"), json=sent, timeout=PATIENCE_S) as response:
                next(response.iter_lines())  # a process of the model serves it

        with ThreadPoolExecutor(4) as pool:
            assert set(pool.map(be_late, range(12))) == {504}
        # On a busy machine a stop overtakes its request, which then does not begin, and is not counted.
        settled_metrics(server)
        num_late = num_cancelled(server)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(leave, range(12)))
        wait_for(lambda: num_cancelled(server) == num_late + 12)
        assert settled_metrics(server)["lookahead_requests_total"] == num_late + 12  # no request has ended by itself


def test_every_process_hands_its_learned_state_over(shared_where, tmp_path) -> None:
    served = prepared(shared_where, "scheduling.bls_instances=3")
    with running(served, shared_where, tmp_path / "run") as server:
        wake = partial(fleet_switch._wake, server.state)
        assert hand_over(tmp_path / "run" / HANDOVER, tmp_path / "new", wake, PATIENCE_S)
    assert len(list((tmp_path / "new").rglob("bls.state"))) == 3
