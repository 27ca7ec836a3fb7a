"""Two servers behind one front end: who gets which request, and processes killed under load.

`lookahead verify --failover` kills more of them."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import psutil
import pytest

from pipeline.cli.failover import run_failover
from pipeline.config.folders import Folders
from pipeline.config.resolution import resolve_config
from pipeline.dynamo.failover import verify_failover
from pipeline.dynamo.fleet import Fleet, find_ended, openai_url, start_fleet, stop_fleet
from pipeline.repository.names import TARGET_MODEL
from pipeline.server.client import TextQuery, complete
from pipeline.server.processes import marked_processes, model_processes
from pipeline.server.state import find_own, find_server, replica_dir
from pipeline.server.watch import answers
from tests.integration.servers import TORCH, becomes_ready, metrics_of, prepared, reason_of_restart
from tests.patience import PATIENCE_S
from tests.servers import left_over, wait_for

pytestmark = [pytest.mark.triton, pytest.mark.slow]
MODEL = "tiny-random-llama"


@pytest.fixture(scope="module")
def fleet(shared_where: Folders, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    # With a parser the front end reports a lost worker in other words.
    parser = "model.tool_call_parser=hermes"
    # The tests kill a server more often than a guard would start it again within ten minutes.
    restarts = "server.max_restarts=20"
    overrides = ("server.openai=true", "server.replicas=2", "drafting.planner=fixed", parser, restarts)
    fleet = start_fleet(prepared(shared_where, *overrides), shared_where, tmp_path_factory.mktemp("run"))
    try:
        yield fleet
    finally:
        fleet.stop()


def url_of(fleet: Fleet) -> str:
    url = openai_url(fleet.servers[0].run_dir)
    assert url is not None
    return url


def output_tokens(fleet: Fleet) -> list[float]:
    """Tokens that each running server has put out so far. The gateway's page may lack a server that is busy."""
    tritons = [server.state.triton for server in fleet.servers if server.poll() is None]
    return [metrics_of(f"http://{triton.metrics}/metrics")["lookahead_output_tokens_total"] for triton in tritons]


def shares(fleet: Fleet, before: list[float], num_tokens: int) -> list[float]:
    """Tokens that each server has put out since `before`, as soon as all are counted: that is a little after the end of
    a request. num_tokens: of all requests since."""

    def counted() -> list[float] | None:
        found = [now - then for now, then in zip(output_tokens(fleet), before, strict=True)]
        return found if sum(found) >= num_tokens else None

    return wait_for(counted)


def num_tokens_of(answer: Any) -> int:
    return int(answer.usage.completion_tokens)


def test_a_session_that_a_client_names_stays_on_one_server(fleet: Fleet) -> None:
    client = openai.OpenAI(base_url=url_of(fleet), api_key="none", max_retries=0, timeout=PATIENCE_S)

    def complete(prompt: str, session: str) -> None:
        headers = {"x-session-id": session}
        client.completions.create(model=MODEL, prompt=prompt, max_tokens=8, temperature=0, extra_headers=headers)

    before = output_tokens(fleet)
    for number in range(8):
        complete(f"{number} other words each time", "mine")
    mine = shares(fleet, before, 64)
    for number in range(8):
        complete(f"{number} words", f"session {number}")
    everybodys = shares(fleet, before, 128)

    assert sorted(mine) == [0, 64]
    assert min(everybodys) > 0
    # The gateway's page has the metrics of all servers.
    page = fleet.state.metrics_url
    wait_for(lambda: metrics_of(page)["lookahead_output_tokens_total"] == sum(output_tokens(fleet)))


def test_a_conversation_goes_on_where_it_was(fleet: Fleet) -> None:
    client = openai.OpenAI(base_url=url_of(fleet), api_key="none", max_retries=0, timeout=PATIENCE_S)
    messages: list[openai.types.chat.ChatCompletionMessageParam] = [
        {"role": "user", "content": "a long text"},
        {"role": "assistant", "content": "an answer"},
        {"role": "user", "content": "and then?"},
    ]
    before, num_tokens = output_tokens(fleet), 0

    for _ in range(6):
        answer = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=8, temperature=0)
        num_tokens += num_tokens_of(answer)
        messages.append({"role": "assistant", "content": answer.choices[0].message.content or ""})
        messages.append({"role": "user", "content": "and then?"})

    assert min(shares(fleet, before, num_tokens)) == 0


def spread(fleet: Fleet) -> list[float]:
    """Tokens that each server puts out for requests of eight sessions."""
    before, num_tokens = output_tokens(fleet), 0
    client = openai.OpenAI(base_url=url_of(fleet), api_key="none", max_retries=0, timeout=PATIENCE_S)
    for number in range(8):
        headers = {"x-session-id": f"{time.monotonic()} {number}"}
        answer = client.completions.create(model=MODEL, prompt="a", max_tokens=8, temperature=0, extra_headers=headers)
        num_tokens += num_tokens_of(answer)
    return shares(fleet, before, num_tokens)


def test_all_workers_serve_again_after_a_suspension(fleet: Fleet) -> None:
    suspended = [pid for service in fleet.services for pid in marked_processes(service.state.server_id)]
    for pid in suspended:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(14)  # entries are deleted after ten seconds without renewal
    for pid in suspended:
        os.kill(pid, signal.SIGCONT)

    time.sleep(5)
    deadline = time.monotonic() + PATIENCE_S
    while min(found := spread(fleet)) == 0 and time.monotonic() < deadline:
        time.sleep(1)
    assert min(found) > 0


def test_killed_processes_of_each_kind_change_no_token(fleet: Fleet) -> None:
    report = verify_failover(fleet, url_of(fleet), MODEL, 4, 60, lambda text: None)

    assert report.differences == []
    assert report.failures == []
    assert report.num_kills == 4
    assert report.num_requests > 2


@pytest.mark.parametrize("of_engine", [False, True])
def test_an_output_moves_away_from_a_server_that_hangs(fleet: Fleet, of_engine: bool) -> None:
    """The guard starts a server again that does not answer for 30 s. One whose engine does not answer a new call ends
    by itself before."""
    client = openai.OpenAI(base_url=url_of(fleet), api_key="none", max_retries=0, timeout=PATIENCE_S)
    headers = {"x-session-id": f"hang {of_engine}"}

    def stream() -> Iterator[str]:
        options = {"max_tokens": 200, "seed": 1, "extra_headers": headers}
        for chunk in client.completions.create(model=MODEL, prompt="a", stream=True, **options):  # type: ignore[call-overload]
            yield chunk.choices[0].text

    before = output_tokens(fleet)
    expected = "".join(stream())
    found = shares(fleet, before, 200)
    number = found.index(max(found))
    server_id = fleet.servers[number].state.server_id
    engine = next(pid for pid, model in model_processes(server_id).items() if model == TARGET_MODEL)
    folder = replica_dir(fleet.servers[0].run_dir, number + 1)
    earlier = find_own(folder)
    assert earlier is not None
    output = stream()
    text = next(output)
    os.kill(engine if of_engine else psutil.Process(engine).ppid(), signal.SIGSTOP)

    assert text + "".join(output) == expected
    wait_for(lambda: (s := find_own(folder)) and s.restarts > earlier.restarts)
    reasons = ["it did not answer for 30 s", *(["signal 9, Killed"] if of_engine else [])]
    assert reason_of_restart(fleet.servers[number].log_path, earlier.restarts + 1) in reasons
    wait_for(lambda: (s := find_own(folder)) and answers(f"http://{s.triton.http}/v2/health/ready"))


def test_a_fleet_serves_on_without_its_first_server(fleet: Fleet) -> None:
    """The last test of this fleet."""
    folder, first = fleet.servers[0].run_dir, fleet.state
    os.kill(first.guard_pid, signal.SIGTERM)
    fleet.servers[0].guard.wait()

    state = find_server(folder)
    assert state is not None
    assert (state.server_id, state.http_url) == (fleet.servers[1].state.server_id, first.http_url)
    assert becomes_ready(state)
    assert find_ended(folder, 2) == ["replica 1"]
    assert httpx.get(url_of(fleet).removesuffix("/v1") + "/health", timeout=PATIENCE_S).status_code == 200
    assert spread(fleet) == [64]
    for protocol, url in (("http", state.http_url), ("grpc", state.grpc_url)):
        answer = complete(TextQuery("a", max_tokens=4), url, protocol, timeout_s=PATIENCE_S)  # type: ignore[arg-type]
        assert answer.finish_reason == "length"

    stopped = stop_fleet(folder)
    assert stopped is not None
    assert stopped.server_id == fleet.servers[1].state.server_id
    assert not left_over(first.gateway_id)
    assert find_server(folder) is None


def test_the_command_asks_a_fleet_whose_profile_has_api_keys(
    shared_where: Folders, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = json.dumps([{"tenant": "alice", "key_sha256": "0" * 64}])
    settings = (*TORCH, f"server.api_keys={keys}", "drafting.planner=fixed")
    resolved = resolve_config("tiny-random-llama", "latency", settings, where=shared_where)

    run_failover(resolved, shared_where, num_kills=1, max_tokens=8, as_json=True)

    report = json.loads(capsys.readouterr().out)
    assert report["kills"] == 1
    assert not report["failures"]
