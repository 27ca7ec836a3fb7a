"""A switch of the profile: same address, running requests finish, rollback if the new server does not start."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from pipeline.config.folders import Folders, folders
from pipeline.dynamo.running_fleet import as_running
from pipeline.errors import RequestError, ServerError
from pipeline.server.client import Completion, TextQuery, complete
from pipeline.server.server import RunningServer, stop_server
from pipeline.server.startup import PreparedServer, launch, prepare
from pipeline.server.state import ServerState, find_server
from pipeline.server.switch import check_switch, resolve_other, running_served, switch_server
from tests.integration.servers import becomes_ready, prepared
from tests.own_folders import own_folders
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.triton, pytest.mark.slow]
# Of outputs that run until another client has been refused, and that end before the guard ends the server.
NUM_TOKENS = 4000
FIXED = "drafting.planner=fixed"  # a build measures no pass times


def ask(
    state: ServerState, max_tokens: int, strategy: str = "none", on_text: Callable[[str], None] = lambda text: None
) -> Completion:
    query = TextQuery("the rat", max_tokens, strategy=strategy, end_id=-1, return_statistics=True)
    return complete(query, state.grpc_url, "grpc", timeout_s=PATIENCE_S, on_text=on_text)


def ask_until(state: ServerState, switched: Future[RunningServer]) -> None:
    while not switched.done():
        ask(state, 1)


def running(folder: Path) -> ServerState:
    state = find_server(folder)
    assert state is not None
    assert becomes_ready(state)
    return state


def other_profile(where: Folders, folder: Path, profile: str) -> tuple[PreparedServer, PreparedServer]:
    before = as_running(running_served(where, folder), folder)
    resolved = resolve_other(before, profile, (FIXED,), where)
    check_switch(before, resolved, where)
    return before, as_running(prepare(resolved, where), folder)


def test_a_server_takes_another_profile_and_keeps_the_old_one_if_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine needs longer for all tokens.
    monkeypatch.setattr("pipeline.server.server.DRAIN_SECONDS", PATIENCE_S)
    where = own_folders(tmp_path)
    folder = tmp_path / "run"
    notes: list[str] = []
    stop = partial(stop_server, folder, drain=True)

    def start(served: PreparedServer) -> RunningServer:
        server = launch(served, where, folder, note=notes.append)
        server.release()
        return server

    first = launch(prepared(where, "model.checkpoint.seed=3", FIXED), where, folder)
    try:
        with pytest.raises(ServerError, match="already serves"):
            other_profile(where, folder, "latency")
        text = ask(first.state, 24).text

        before, after = other_profile(where, folder, "throughput")
        prepared(where, "model.checkpoint.seed=3", FIXED)  # renders the repository again while it is served
        with ThreadPoolExecutor() as clients:
            asking = []
            for strategy in ("none", "lookahead", "trie"):  # one call to the engine after the other, or many
                arrived = threading.Event()
                asking.append(
                    clients.submit(
                        ask, first.state, NUM_TOKENS, strategy, on_text=lambda text, event=arrived: event.set()
                    )
                )
                assert arrived.wait(PATIENCE_S)
            switched = clients.submit(switch_server, before, after, folder, lambda note: None, stop, start)
            with pytest.raises(RequestError, match="being stopped or exchanged"):
                ask_until(first.state, switched)
            for answer in asking:
                assert answer.result().statistics is not None
                assert len(answer.result().statistics["output_ids"]) == NUM_TOKENS
            second = switched.result().state
        assert second == running(folder)
        assert (second.profile, second.grpc_url, second.http_url) == (
            "throughput",
            first.state.grpc_url,
            first.state.http_url,
        )
        assert ask(second, 24).text == text  # the same model, overrides included

        before, after = other_profile(where, folder, "balanced")
        for code in after.repository.glob("*/1/model.py"):
            code.write_text("raise ValueError('sabotaged')")
        with pytest.raises(ServerError, match=r"balanced.*did not start, and .*throughput.* serves again.*sabotaged"):
            switch_server(before, after, folder, notes.append, stop, start)

        third = running(folder)
        assert (third.profile, third.grpc_url) == ("throughput", first.state.grpc_url)
        assert ask(third, 24).text == text
        assert "sabotaged" in (folder / "server.log.1").read_text()
        assert any("server.log.1" in note for note in notes)
    finally:
        first.stop()
        stop_server(folder)
    assert find_server(folder) is None


def test_without_a_server_there_is_nothing_to_switch(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="No server is running"):
        running_served(replace(folders(), engines=tmp_path), tmp_path)
