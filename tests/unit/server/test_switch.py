"""Exchange of a server, with a script that replaces tritonserver and refuses some repositories."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pipeline.config.folders import folders
from pipeline.config.loading import RESOLVED
from pipeline.config.resolution import dump_resolved, resolve_config
from pipeline.config.schema import ApiKey
from pipeline.dynamo.running_fleet import as_running
from pipeline.errors import ConfigError, ServerError
from pipeline.server import switch
from pipeline.server.installation import VARIABLE
from pipeline.server.server import RunningServer, stop_server
from pipeline.server.startup import PreparedServer, launch
from pipeline.server.state import ServerState, find_server
from pipeline.server.switch import check_switch, resolve_other, running_served, switch_server
from tests.server_states import guarded
from tests.servers import BARE, FREE_PORTS
from tests.unit.server.fake_server import hurry_guards, write

CPU = ("backend=torch", "device=cpu")
OVERRIDES = (*CPU, *FREE_PORTS, *BARE, "model.checkpoint.seed=7")
FAILS = 'if "bad" in flags["model-repository"]: sys.exit("error: this one does not load")'


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[PreparedServer, ServerState, Path]]:
    """A server under profile latency, its state and its run folder."""
    script = tmp_path / "tritonserver"
    write(script, FAILS)
    monkeypatch.setenv(VARIABLE, str(script))
    hurry_guards(monkeypatch)
    served, folder = serve_of(tmp_path, "latency", "good"), tmp_path / "run"
    state = start_in(folder)(served).state
    yield served, state, folder
    stop_server(folder)


def serve_of(tmp_path: Path, profile: str, repository: str) -> PreparedServer:
    artifact = cast(Any, SimpleNamespace(manifest=SimpleNamespace(num_bytes=1)))
    resolved = resolve_config("tiny-random-llama", profile, OVERRIDES)
    return PreparedServer(resolved, artifact, tmp_path / repository)


def start_in(folder: Path) -> Callable[[PreparedServer], RunningServer]:
    def start(served: PreparedServer) -> RunningServer:
        server = launch(served, folders(), folder)
        server.release()
        return server

    return start


def switched(before: PreparedServer, after: PreparedServer, folder: Path, **options: Any) -> RunningServer:
    options = {"note": lambda note: None, "stop": partial(stop_server, folder), "start": start_in(folder)} | options
    before, after = (as_running(served, folder) for served in (before, after))
    return switch_server(before, after, folder, **options)


def addresses(state: ServerState) -> tuple[str, str, str]:
    return state.http_url, state.grpc_url, state.metrics_url


def test_the_other_profile_answers_at_the_same_address(running, tmp_path):
    before, state, folder = running
    new = switched(before, serve_of(tmp_path, "throughput", "also-good"), folder).state
    assert new == find_server(folder)
    assert (new.profile, addresses(new)) == ("throughput", addresses(state))
    assert new.server_id != state.server_id


def test_the_old_one_comes_back_if_the_new_one_does_not_come_up(running, tmp_path):
    before, state, folder = running
    notes: list[str] = []
    with pytest.raises(ServerError, match=r"\(throughput\) did not start, and .*\(latency\) serves again(.|\n)*load"):
        switched(before, serve_of(tmp_path, "throughput", "bad"), folder, note=notes.append)
    back = find_server(folder)
    assert back is not None
    assert (back.profile, addresses(back)) == ("latency", addresses(state))
    assert "does not load" in (folder / "server.log.1").read_text()
    assert any("did not start; starting" in note and "again" in note for note in notes)


def test_if_neither_server_starts_both_reasons_are_reported(running, tmp_path):
    before, _, folder = running
    broken = PreparedServer(before.resolved, before.artifact, tmp_path / "bad-too")
    with pytest.raises(ServerError, match=r"did not start: (.|\n)*did not start again either: (.|\n)*does not load"):
        switched(broken, serve_of(tmp_path, "throughput", "bad"), folder)
    assert find_server(folder) is None


@pytest.mark.parametrize("kind", [KeyboardInterrupt, OSError, ConfigError])
def test_whatever_ends_the_start_of_the_new_one_brings_the_old_one_back(running, tmp_path, kind):
    before, _, folder = running
    calls: list[str] = []

    def interrupted(served: PreparedServer) -> RunningServer:
        calls.append(served.resolved.profile.name)
        if len(calls) == 1:
            raise kind
        return start_in(folder)(served)

    with pytest.raises(kind):
        switched(before, serve_of(tmp_path, "throughput", "good"), folder, start=interrupted)
    assert calls == ["throughput", "latency"]
    back = find_server(folder)
    assert back is not None
    assert back.profile == "latency"


@pytest.mark.parametrize("begun", [False, True])
def test_an_interruption_while_the_old_one_stops_brings_it_back(running, tmp_path, begun):
    before, state, folder = running
    ends = [KeyboardInterrupt()]

    def interrupted() -> None:
        if begun or not ends:
            stop_server(folder)
        if ends:
            raise ends.pop()

    good = serve_of(tmp_path, "throughput", "good")
    with pytest.raises(KeyboardInterrupt):
        switched(before, good, folder, stop=interrupted)
    back = find_server(folder)
    assert back is not None
    assert (back.profile, addresses(back)) == ("latency", addresses(state))


def test_a_server_that_ended_during_the_build_is_reported(running, tmp_path):
    before, _, folder = running
    after = serve_of(tmp_path, "throughput", "good")
    stop_server(folder)
    with pytest.raises(ServerError, match="The server ended while tiny-random-llama"):
        switch_server(before, after, folder, print, stop=lambda: None, start=start_in(folder))


KEY = ApiKey(tenant="alice", key_sha256="0" * 64)
KEYS = "server.api_keys=[{tenant: bob, key_sha256: " + "b" * 64 + "}]"


@pytest.mark.parametrize("model", [None, "tiny-random-llama"])
@pytest.mark.parametrize(
    ("overrides", "tenants", "is_safe", "lost"),
    [
        ((), ["alice"], True, "server.api_keys and no server.side_channel_safe"),
        ((KEYS,), ["bob"], True, "server.side_channel_safe"),
        (("server.api_keys=[]", "server.side_channel_safe=false"), [], False, None),
    ],
)
def test_keys_of_the_running_server_stay_unless_there_are_others(tmp_path, model, overrides, tenants, is_safe, lost):
    """The address stays, too: the server would serve everyone who reaches it."""
    before = serve_of(tmp_path, "latency", "good")
    server = {"api_keys": (KEY,), "side_channel_safe": True}
    before = replace(before, resolved=before.resolved.with_settings("server", **server))
    notes: list[str] = []

    other = resolve_other(before, "throughput", (*CPU, *overrides), folders(), model, notes.append)

    assert [key.tenant for key in other.profile.server.api_keys] == tenants
    assert other.profile.server.side_channel_safe is is_safe
    assert notes == ([f"throughput has no {lost}; that of the running server stays"] if lost else [])


def test_the_running_server_has_the_settings_of_its_repository(tmp_path, monkeypatch):
    """A bench with the same profile leaves its own settings beside the engine."""
    beside = serve_of(tmp_path, "latency", "good")
    served = beside.resolved.with_settings("server", api_keys=(KEY,), side_channel_safe=True)
    beside.repository.mkdir()
    (beside.repository / RESOLVED).write_text(dump_resolved(served))
    monkeypatch.setattr(switch, "load_artifact", lambda *_: SimpleNamespace(resolved=beside.resolved))
    monkeypatch.setattr(switch, "check_repository", lambda path: None)
    state = {"model": "tiny-random-llama", "profile": "latency", "repository": str(beside.repository)}
    with guarded(tmp_path, {}, **state):
        assert running_served(folders(), tmp_path).resolved == served


def test_the_model_stays_as_it_is_served_overrides_included(tmp_path):
    before = serve_of(tmp_path, "latency", "good")
    other = resolve_other(before, "throughput", ("engine.max_batch_size=3",), folders())
    assert other.model == before.resolved.model
    assert (other.backend, other.device) == ("torch", "cpu")
    assert other.profile.name == "throughput"
    assert other.profile.engine.max_batch_size == 3
    check_switch(before, other, folders())
    same = resolve_other(before, "latency", (), folders())
    with pytest.raises(ServerError, match="The server already serves"):
        check_switch(before, same, folders())


def test_a_backend_that_cannot_serve_here_is_refused_before_the_old_server_stops(tmp_path, monkeypatch):
    before = serve_of(tmp_path, "latency", "good")
    other = resolve_other(before, "throughput", (), folders())
    monkeypatch.setenv(VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(ServerError, match=f"{VARIABLE} is .*nowhere"):
        check_switch(before, other, folders())
