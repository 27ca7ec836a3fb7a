"""The failover test kills processes of servers that may be started again at that moment."""

from __future__ import annotations

import random
from functools import partial
from types import SimpleNamespace

import pytest

from pipeline.dynamo import failover
from pipeline.errors import ServerError

FLEET = SimpleNamespace(servers=[SimpleNamespace(state=SimpleNamespace(server_id="x"))])
CHOOSE = partial(failover._model, FLEET, 0, random.Random(0))


def test_a_server_without_processes_of_models_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard had started it again. The command ended in an IndexError."""
    monkeypatch.setattr(failover, "_POLL_S", 0.0)
    found = iter([{}, {}, {7: "lookahead_bls"}])
    monkeypatch.setattr(failover, "model_processes", lambda server_id: next(found))

    assert failover._found(CHOOSE) == ([7], "the process of lookahead_bls of replica 1")


def test_a_server_that_does_not_come_back_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failover, "_RETURN_TIMEOUT_S", -1.0)
    monkeypatch.setattr(failover, "model_processes", lambda server_id: {})

    with pytest.raises(ServerError, match="Replica 1 has no process of a model to kill"):
        failover._found(CHOOSE)


def test_a_fleet_is_whole_although_a_process_of_a_model_was_missing_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its server was being started again when the processes were counted."""
    monkeypatch.setattr(failover, "_RETURN_TIMEOUT_S", -1.0)
    monkeypatch.setattr(failover, "model_processes", lambda server_id: {7: "lookahead_bls", 8: "tensorrt_llm"})
    monkeypatch.setattr(failover, "is_ready", lambda state: True)
    monkeypatch.setattr(failover, "answers", lambda url: True)
    server = SimpleNamespace(state=FLEET.servers[0].state, run_dir="/run")
    fleet = SimpleNamespace(servers=[server], services=[], running=[])

    failover._wait_until_whole(fleet, "http://127.0.0.1:1/v1", "m", [1])
    with pytest.raises(ServerError, match="A killed process did not come back"):
        failover._wait_until_whole(fleet, "http://127.0.0.1:1/v1", "m", [3])
