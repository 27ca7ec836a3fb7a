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
