"""A fleet over a real etcd. Two run folders stand for two machines: the second one joins, dies and vanishes while
clients send requests. docs/fleet-tests.md describes the same with two network namespaces."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from pipeline.config.folders import Folders
from pipeline.dynamo.failover_requests import KINDS, PROMPTS, ClientOutput, ask, request_body
from pipeline.dynamo.fleet import Fleet, check_fleet, openai_url, start_fleet, stop_fleet
from pipeline.dynamo.services import FRONT_END, WORKER
from pipeline.errors import ServerError
from pipeline.repository.names import FRONT_MODEL
from pipeline.server.discovery import ETCD_ENDPOINTS, FILE_KV
from pipeline.server.processes import marked_processes
from tests.etcd import NO_ETCD, Etcd, etcd_path
from tests.integration.servers import becomes_ready, metrics_of, prepared
from tests.own_folders import own_folders
from tests.patience import PATIENCE_S
from tests.servers import processes_of as marked
from tests.servers import wait_for

pytestmark = [pytest.mark.triton, pytest.mark.slow, pytest.mark.skipif(etcd_path() is None, reason=NO_ETCD)]
MODEL = "tiny-random-llama"
# The tests kill a server about as often as a guard would start it again within ten minutes.
SETTINGS = ("server.openai=true", "server.discovery=etcd", "drafting.planner=fixed", "server.max_restarts=20")
# For so long the gateway waits for a server before it answers with status 503.
WAITED_S = 60.0
BODIES = [request_body(MODEL, PROMPTS[0], 80, kind) for kind in KINDS]


class Machines:
    """first: the machine with the front end. second: the one that has joined it. expected: outputs for BODIES of the
    first machine alone."""

    def __init__(self, etcd: Etcd, first: Fleet, folder: Path) -> None:
        self.etcd, self.first, self.second = etcd, first, first
        self.folder = folder
        url = openai_url(first.servers[0].run_dir)
        assert url is not None
        self.url = url
        with httpx.Client(timeout=PATIENCE_S, trust_env=False) as client:
            self.expected = [ask(client, url, body) for body in BODIES]

    def output_tokens(self) -> list[float]:
        """Tokens that each machine has put out so far."""
        pages = (metrics_of(each.state.metrics_url) for each in (self.first, self.second))
        return [page["lookahead_output_tokens_total"] for page in pages]

    @contextmanager
    def under_load(self, has_server: bool = True) -> Iterator[None]:
        """Four clients send requests during the block, and each output must be the expected one. has_server: whether
        one of the servers always runs. If none does, a request may get status 503 after the gateway's waiting time: on
        a busy machine a server may take longer to start again."""
        done, wrong, num_right = threading.Event(), list[str](), [0]

        def client_loop(number: int) -> None:
            with httpx.Client(timeout=PATIENCE_S, trust_env=False) as client:
                while not done.is_set():
                    number = (number + 1) % len(BODIES)
                    started = time.monotonic()
                    found: ClientOutput | str
                    try:
                        found = ask(client, self.url, BODIES[number])
                    except ServerError as error:
                        found = str(error)
                        has_waited = time.monotonic() - started >= WAITED_S
                        if not has_server and found.startswith("status 503") and has_waited:
                            continue
                    if found == self.expected[number]:
                        num_right[0] += 1
                    else:
                        wrong.append(f"{[*KINDS][number]}: {found} instead of {self.expected[number]}")

        clients = [threading.Thread(target=client_loop, args=(number,)) for number in range(4)]
        for client in clients:
            client.start()
        try:
            time.sleep(1)  # requests run
            yield
            wait_for(lambda: wrong or num_right[0] > len(clients))
        finally:
            done.set()
            for client in clients:
                client.join()
        assert not wrong


def processes_of(fleet: Fleet) -> list[int]:
    """All processes of a machine, guards first."""
    gateway = fleet.servers[0].gateway
    states = [each.state for each in (*fleet.running, *([] if gateway is None else [gateway]))]
    marked = (pid for state in states for pid in marked_processes(state.server_id))
    return list(dict.fromkeys([*(state.guard_pid for state in states), *marked]))


def send(number: int, pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


@pytest.fixture(scope="module")
def machines(shared_where: Folders, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    folder = tmp_path_factory.mktemp("machines")
    served = prepared(shared_where, *SETTINGS)
    etcd = Etcd(folder / "etcd")
    etcd.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv(FILE_KV, raising=False)
            patch.setenv(ETCD_ENDPOINTS, etcd.url)
            patch.setenv("DYN_TCP_RPC_HOST", "127.0.0.1")
            patch.setenv("DYN_TCP_RESPONSE_STREAM_HOST", "lo")
            check_fleet(served.resolved)
            first = start_fleet(served, shared_where, folder / "first")
            try:
                found = Machines(etcd, first, folder)
                found.second = start_fleet(served, shared_where, folder / "second", join=True)
                try:
                    yield found
                finally:
                    found.second.stop()
            finally:
                first.stop()
    finally:
        etcd.kill()


def test_requests_reach_both_machines_and_a_session_stays_on_one(machines: Machines) -> None:
    def tokens_of(sessions: list[str]) -> list[float]:
        before, num_tokens = machines.output_tokens(), 0
        with httpx.Client(timeout=PATIENCE_S, trust_env=False) as client:
            for session in sessions:
                body = {"model": MODEL, "prompt": session, "max_tokens": 8, "temperature": 0}
                answer = client.post(f"{machines.url}/completions", json=body, headers={"x-session-id": session})
                assert answer.status_code == 200
                num_tokens += answer.json()["usage"]["completion_tokens"]

        def counted() -> list[float] | None:
            found = [now - then for now, then in zip(machines.output_tokens(), before, strict=True)]
            return found if sum(found) >= num_tokens else None

        return wait_for(counted)  # tokens are counted a little after the end of their request

    assert sorted(tokens_of(["mine"] * 6)) == [0, 48]
    assert min(tokens_of([f"session {number}" for number in range(8)])) > 0
    # The front end reports a worker whose model card differs.
    (log,) = (each.log_path for each in machines.first.services if each.name == FRONT_END)
    assert "hecksum" not in log.read_text(errors="replace")


def test_a_machine_with_another_quantization_does_not_join(machines: Machines, tmp_path: Path) -> None:
    where = own_folders(tmp_path)
    other = prepared(where, *SETTINGS, "engine.quantization=int8")
    with (
        machines.under_load(),
        pytest.raises(
            ServerError, match=r"may give other tokens .*engine.quantization int8, smoothing 1 instead of none"
        ),
    ):
        start_fleet(other, where, tmp_path / "third", join=True)


def test_a_killed_worker_of_the_other_machine_changes_no_token(machines: Machines) -> None:
    (worker,) = (each for each in machines.second.services if each.name.startswith(WORKER))
    with machines.under_load():
        send(signal.SIGKILL, [pid for pid in marked_processes(worker.state.server_id) if pid != worker.state.guard_pid])
        wait_for(lambda: "restart 1" in worker.log_path.read_text(errors="replace"))
        wait_for(worker.service.is_ready)


def test_a_fleet_without_any_triton_server_for_a_while_changes_no_token(machines: Machines) -> None:
    """Its workers lose each request within a second."""
    servers = [each.state for each in (machines.first, machines.second)]
    with machines.under_load(has_server=False):
        tritons = [each for state in servers for each in marked(state.server_id) if each.name() == "tritonserver"]
        send(signal.SIGKILL, [each.pid for each in tritons])
        assert len(tritons) == 2
        for state in servers:
            becomes_ready(state)


def test_a_restart_of_etcd_changes_no_token(machines: Machines) -> None:
    with machines.under_load():
        machines.etcd.kill()
        time.sleep(1)
        machines.etcd.start()
        time.sleep(3)


def test_an_etcd_that_is_away_for_long_ends_nothing(machines: Machines) -> None:
    workers = [each for fleet in (machines.first, machines.second) for each in fleet.services if WORKER in each.name]
    machines.etcd.kill()
    for worker in workers:
        wait_for(lambda log=worker.log_path: "waiting until there is an answer" in log.read_text(errors="replace"))

    url = f"{machines.first.state.http_url}/v2/models/{FRONT_MODEL}/generate"
    assert httpx.post(url, json={"text_input": "a", "max_tokens": 8}, timeout=PATIENCE_S).status_code == 200

    machines.etcd.start()
    for worker in workers:
        wait_for(worker.service.is_ready)
    with httpx.Client(timeout=PATIENCE_S, trust_env=False) as client:
        assert [ask(client, machines.url, body) for body in BODIES] == machines.expected
    assert all(each.poll() is None for fleet in (machines.first, machines.second) for each in fleet.running)


def test_a_machine_that_vanishes_changes_no_token(machines: Machines) -> None:
    """Its connections stay open without an answer, as after a power failure. The last test of these machines."""
    with machines.under_load():
        processes = processes_of(machines.second)
        send(signal.SIGSTOP, processes)
        time.sleep(2)
    send(signal.SIGKILL, processes)
    with machines.under_load():
        time.sleep(1)
    assert stop_fleet(machines.folder / "second") is None
