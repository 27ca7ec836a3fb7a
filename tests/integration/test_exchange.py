"""A switch of the profile under load: no request fails, and each gets its own text only."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

from pipeline.config.folders import Folders
from pipeline.dynamo.fleet import openai_url, start_fleet, stop_fleet
from pipeline.dynamo.fleet_switch import obstacle, switch_fleet
from pipeline.dynamo.running_fleet import as_running
from pipeline.server.client import Completion, TextQuery, complete
from pipeline.server.run_folders import free_dir, serving_dir
from pipeline.server.service import find_services
from pipeline.server.startup import prepare
from pipeline.server.state import ServerState, find_replicas, find_server
from pipeline.server.switch import resolve_other, running_served
from tests.integration.servers import TORCH, becomes_ready, prepared
from tests.integration.test_switch import ask
from tests.own_folders import own_folders
from tests.patience import PATIENCE_S
from tests.servers import left_over

pytestmark = [pytest.mark.triton, pytest.mark.slow]
MODEL = "tiny-random-llama"


def keep_asking(ask_once: Callable[[], str], stop: threading.Event) -> list[str]:
    """Answers until the stop. An error ends the test."""
    answers = []
    while not stop.is_set():
        answers.append(ask_once())
    return answers


def drafted(state: ServerState) -> Completion:
    query = TextQuery("a tea for two", 200, strategy="trie", end_id=-1, return_statistics=True)
    return complete(query, state.grpc_url, "grpc", timeout_s=PATIENCE_S)


def num_steps(answer: Completion) -> int:
    assert answer.statistics is not None
    return int(answer.statistics["num_steps"])


def test_a_switch_under_load_loses_no_request(tmp_path: Path) -> None:
    where: Folders = own_folders(tmp_path)
    base = tmp_path / "run"
    settings = ("server.openai=true", "server.host=0.0.0.0", "drafting.planner=fixed")  # of the first server only
    first = start_fleet(prepared(where, *settings), where, base, detach=True)
    url = openai_url(base)
    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=PATIENCE_S)

    def chat() -> str:
        asked = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "the rat"}], max_tokens=60, seed=3
        )
        return asked.choices[0].message.content or ""

    def over_grpc() -> str:
        return ask(first.state, 60, "trie").text

    long_text = threading.Event()
    try:
        new_text = drafted(first.state)
        before = running_served(where, base)
        after = prepare(resolve_other(before, "throughput", (*TORCH, "drafting.planner=fixed"), where), where)
        stop = threading.Event()
        with ThreadPoolExecutor() as pool:
            clients = [pool.submit(keep_asking, one, stop) for one in (chat, over_grpc)]
            long = pool.submit(ask, first.state, 1500, "none", lambda text: long_text.set())
            assert long_text.wait(PATIENCE_S)
            try:
                notes: list[str] = []
                new = switch_fleet(as_running(before, base), as_running(after, base), where, base, notes.append)
                time.sleep(1)
            finally:
                stop.set()
            answers = [one.result() for one in clients]
            whole = long.result()

        assert not any("the old server stops before" in note or "did not save" in note for note in notes)
        for texts in answers:
            assert len(texts) > 1
            assert len(set(texts)) == 1
        assert whole.statistics is not None
        assert len(whole.statistics["output_ids"]) == 1500
        folder = serving_dir(base)
        assert folder == base / "second"
        state = find_server(folder)
        assert state == new.state
        assert becomes_ready(state)
        assert (state.profile, openai_url(folder)) == ("throughput", url)
        assert (state.http_url, state.grpc_url, state.metrics_url) == (
            first.state.http_url,
            first.state.grpc_url,
            first.state.metrics_url,
        )
        assert find_server(base) is None
        assert not left_over(first.state.server_id)
        assert chat() == answers[0][0]
        learnt = drafted(state)  # nobody has asked the new server for this text: the trie has moved over
        assert learnt.text == new_text.text
        assert num_steps(learnt) < num_steps(new_text) / 2
    finally:
        stop_fleet(serving_dir(base))
        stop_fleet(free_dir(base))
    assert not find_replicas(base)
    for folder in (base, base / "second"):
        assert not find_services(folder)


def test_what_prevents_it_is_said(tmp_path: Path) -> None:
    where = own_folders(tmp_path)
    alone = prepared(where, "server.gateway.enabled=false", "drafting.planner=fixed")

    assert "there is no gateway" in (obstacle(alone, tmp_path) or "")
