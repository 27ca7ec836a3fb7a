"""Failover test: requests run while workers, Triton servers, processes of their models and the front end are killed
with SIGKILL, and no token may change.

An undisturbed fleet first serves each request once. Then clients repeat the requests while one process after the other
is killed and restarted by its guard. Every output must equal the first one.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from pipeline.dynamo.failover_requests import KINDS, PROMPTS, REQUEST_TIMEOUT_S, ClientOutput, ask, request_body
from pipeline.dynamo.fleet import Fleet
from pipeline.dynamo.services import FRONT_END, WORKER, model_url
from pipeline.engine.backend import Note
from pipeline.errors import ServerError
from pipeline.server.client_threads import ClientThreads
from pipeline.server.metrics import read_metrics
from pipeline.server.processes import marked_processes, model_processes
from pipeline.server.state import is_ready, reachable
from pipeline.server.watch import answers

# Time limit for a killed process to serve again.
_RETURN_TIMEOUT_S = 900.0
_NUM_CLIENTS = 4
# Range of the random pause before a kill.
_PAUSE_S = (0.2, 1.5)
_POLL_S = 0.05


@dataclass
class FailoverReport:
    """Result of one run. num_moved: requests that migrated, from the front end's metrics. slowest_s: the longest
    response time. differences, failures: descriptions of requests with another output, or with an error."""

    num_kills: int = 0
    num_requests: int = 0
    num_moved: int = 0
    slowest_s: float = 0.0
    differences: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def counts(self) -> dict[str, float]:
        """Counts by name, with the longest response time in seconds."""
        return {
            "kills": self.num_kills,
            "requests": self.num_requests,
            "moved": self.num_moved,
            "different": len(self.differences),
            "failed": len(self.failures),
            "slowest_s": round(self.slowest_s, 1),
        }

    @property
    def passed(self) -> bool:
        return not self.differences and not self.failures and self.num_requests > 0


def verify_failover(fleet: Fleet, url: str, model: str, num_kills: int, max_tokens: int, note: Note) -> FailoverReport:
    """Run the test with num_kills kills of a fleet with two or more replicas. url: base URL of its OpenAI API. Raises
    ServerError if the fleet does not serve undisturbed, or a killed process does not come back."""
    bodies = [request_body(model, prompt, max_tokens, kind) for kind in KINDS for prompt in PROMPTS]
    names = [f"{kind}: {prompt}" for kind in KINDS for prompt in PROMPTS]
    with httpx.Client(timeout=REQUEST_TIMEOUT_S, trust_env=False) as client:
        note("recording the outputs of the undisturbed fleet")
        expected = [ask(client, url, body) for body in bodies]
    report, lock, done, abandoned = FailoverReport(), threading.Lock(), threading.Event(), threading.Event()
    report.num_moved = -num_moved(fleet)

    def client_loop(number: int) -> None:
        order = random.Random(number)
        with httpx.Client(timeout=REQUEST_TIMEOUT_S, trust_env=False) as client:
            while not done.is_set():
                index = order.randrange(len(bodies))
                started = time.monotonic()
                outcome: ClientOutput | str
                try:
                    outcome = ask(client, url, bodies[index])
                except ServerError as error:
                    outcome = str(error)
                if abandoned.is_set():  # the fleet is being stopped
                    return
                with lock:
                    report.num_requests += 1
                    report.slowest_s = max(report.slowest_s, time.monotonic() - started)
                    if isinstance(outcome, str):
                        report.failures.append(f"{names[index]}: {outcome}")
                        note(f"failed: {report.failures[-1]}")
                    elif outcome != expected[index]:
                        report.differences.append(f"{names[index]}: {outcome} instead of {expected[index]}")
                        note(f"different: {report.differences[-1]}")

    with ClientThreads(_NUM_CLIENTS) as pool:
        clients = [pool.submit(client_loop, number) for number in range(_NUM_CLIENTS)]
        try:
            _kill_in_turn(fleet, url, model, num_kills, report, note)
        except BaseException:
            abandoned.set()
            raise
        finally:
            done.set()
        for finished in clients:
            finished.result()
    report.num_moved += num_moved(fleet)
    return report


def num_moved(fleet: Fleet) -> int:
    """Number of requests that the front end has migrated to another worker since its start."""
    front_end = next(service.state for service in fleet.services if service.name == FRONT_END)
    url = f"http://{reachable(front_end.host)}:{front_end.ports['http']}/metrics"
    values = read_metrics(url, prefix="").items()
    return int(sum(value for name, value in values if name.endswith("model_migration_total")))


def _kill_in_turn(fleet: Fleet, url: str, model: str, num_kills: int, report: FailoverReport, note: Note) -> None:
    moments = random.Random(num_kills)
    num_models = _num_models(fleet)
    kinds = [_worker, _tritonserver, _model]
    if urlsplit(url).port != fleet.front_end_port:
        kinds.append(_front_end_and_workers)  # without a gateway, the clients' own connections would break
    while report.num_kills < num_kills:
        _wait_until_whole(fleet, url, model, num_models)
        time.sleep(moments.uniform(*_PAUSE_S))
        index, kind = divmod(report.num_kills, len(kinds))
        victims, name = _found(partial(kinds[kind], fleet, index % len(fleet.servers), moments))
        if kinds[kind] is _front_end_and_workers:
            report.num_moved += num_moved(fleet)  # a new front end counts from zero
        for victim in victims:
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        report.num_kills += 1
        note(f"kill {report.num_kills} of {num_kills}: {name}; {report.num_requests} answers")
    _wait_until_whole(fleet, url, model, num_models)


def _wait_until_whole(fleet: Fleet, url: str, model: str, num_models: Sequence[int]) -> None:
    """Wait until every process serves. num_models: processes of models per server, which are more if one was starting
    again when they were counted; a server that has lost one still reports itself ready. Raises ServerError if one does
    not come back in time."""
    deadline = time.monotonic() + _RETURN_TIMEOUT_S
    while not (
        all(now >= before for now, before in zip(_num_models(fleet), num_models, strict=True))
        and all(is_ready(server.state) for server in fleet.servers)
        and all(service.service.is_ready() for service in fleet.services)
        and answers(model_url(url, model))
    ):
        ended = [running.name for running in fleet.running if running.poll() is not None]
        if ended or time.monotonic() > deadline:
            names = ", ".join(ended) or "A killed process"
            raise ServerError(f"{names} did not come back. The logs are in {fleet.servers[0].run_dir}.")
        time.sleep(_POLL_S)


def _num_models(fleet: Fleet) -> list[int]:
    """Processes of models per server."""
    return [len(model_processes(server.state.server_id)) for server in fleet.servers]


def _found(choose: Callable[[], tuple[list[int], str]]) -> tuple[list[int], str]:
    """The processes to kill. On a busy machine the guard may start their server again. Raises ServerError if one does
    not come back in time."""
    deadline = time.monotonic() + _RETURN_TIMEOUT_S
    while time.monotonic() < deadline:
        with suppress(ServerError):
            return choose()
        time.sleep(_POLL_S)
    return choose()


def _worker(fleet: Fleet, index: int, moments: random.Random) -> tuple[list[int], str]:
    """Ids of the processes to kill, and their name. index: of the replica."""
    return [_process(fleet, f"{WORKER}-{index + 1}", "pipeline.dynamo.engine")], f"the worker of replica {index + 1}"


def _tritonserver(fleet: Fleet, index: int, moments: random.Random) -> tuple[list[int], str]:
    return [_child(fleet.servers[index].state.server_id, "tritonserver")], f"tritonserver of replica {index + 1}"


def _model(fleet: Fleet, index: int, moments: random.Random) -> tuple[list[int], str]:
    models = sorted(model_processes(fleet.servers[index].state.server_id).items())
    if not models:
        raise ServerError(f"Replica {index + 1} has no process of a model to kill.")
    victim, model = moments.choice(models)
    return [victim], f"the process of {model} of replica {index + 1}"


def _front_end_and_workers(fleet: Fleet, index: int, moments: random.Random) -> tuple[list[int], str]:
    workers = [_worker(fleet, number, moments)[0][0] for number in range(len(fleet.servers))]
    return [*workers, _process(fleet, FRONT_END, "dynamo.frontend")], "the front end and all workers"


def _process(fleet: Fleet, service: str, name: str) -> int:
    """Id of a service's process. Raises ServerError if there is none."""
    return _child(next(running.state.server_id for running in fleet.services if running.name == service), name)


def _child(server_id: str, name: str) -> int:
    """Id of a guard's child process with the executable or module `name`. Raises ServerError if there is none."""
    for pid in marked_processes(server_id):
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            if any(word == name or word.endswith(f"/{name}") for word in words):
                return pid
    raise ServerError(f"There is no process of {name} to kill.")
