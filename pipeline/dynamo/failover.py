"""Proof that a killed process changes no token: requests run while workers and Triton servers are killed with -9.

Each question is answered once on an undisturbed fleet. Then clients send the questions again and again, while one
process after the other is killed; the guards start them again. Every answer must equal the undisturbed one.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from prometheus_client.parser import text_string_to_metric_families

from pipeline.dynamo.fleet import Fleet
from pipeline.dynamo.services import FRONT_END, lists_model
from pipeline.engine.backend import Note
from pipeline.errors import ServerError
from pipeline.server.processes import marked_processes
from pipeline.server.state import is_ready, reachable

# Time limit of a request; a longer one counts as hanging.
REQUEST_TIMEOUT_S = 180.0
# Time limit for a killed process to serve again.
_RETURN_TIMEOUT_S = 900.0
_NUM_CLIENTS = 4
# Kills come at a random moment of the work of the clients.
_PAUSE_S = (0.2, 1.5)
_POLL_S = 0.05
_PROMPTS = (
    "Count from one to thirty in words.",
    "Write a short story about a lighthouse keeper and a whale.",
    "List the steps of baking bread.",
)


_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 4},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


class Kind(NamedTuple):
    """One kind of request, as fields of an OpenAI request."""

    name: str
    fields: Mapping[str, Any]


KINDS = (
    Kind("greedy", {"temperature": 0}),
    Kind("seeded", {"temperature": 1.0, "seed": 7}),
    Kind("penalties", {"temperature": 1.2, "seed": 8, "presence_penalty": 0.7, "frequency_penalty": 0.4}),
    Kind("stop word", {"temperature": 0.9, "seed": 9, "min_tokens": 8, "stop": ["\n\n", "the end"]}),
    Kind(
        "conversation",  # stays on one server while that is there
        {
            "seed": 11,
            "messages": [
                {"role": "user", "content": "Name a river."},
                {"role": "assistant", "content": "The Rhine."},
                {"role": "user", "content": "Where does it begin?"},
            ],
        },
    ),
    Kind(
        "json",
        {
            "temperature": 0.8,
            "seed": 10,
            "response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": _SCHEMA}},
        },
    ),
)


class ClientOutput(NamedTuple):
    """Output of a request as its client sees it."""

    text: str
    finish_reason: str
    num_prompt_tokens: int
    num_tokens: int


@dataclass
class FailoverReport:
    """Counts of one run. differences, failures: a sentence each. num_moved: requests that moved, by the front end's
    count. slowest_s: the longest response time."""

    num_kills: int = 0
    num_requests: int = 0
    num_moved: int = 0
    slowest_s: float = 0.0
    differences: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def counts(self) -> dict[str, float]:
        """The figures by name."""
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
    """Ask, kill, compare. fleet: with two replicas at least. url: of its OpenAI API. Raises ServerError if a killed
    process does not come back, or the undisturbed fleet does not answer."""
    if len(fleet.servers) < 2:
        raise ServerError("A request can only move to another worker; set server.replicas to 2 or more.")
    bodies = [_body(model, prompt, max_tokens, kind) for kind in KINDS for prompt in _PROMPTS]
    names = [f"{kind.name}: {prompt}" for kind in KINDS for prompt in _PROMPTS]
    with httpx.Client(timeout=REQUEST_TIMEOUT_S, trust_env=False) as client:
        note("asking the undisturbed fleet")
        expected = [_ask(client, url, body) for body in bodies]
    report, lock, done = FailoverReport(), threading.Lock(), threading.Event()
    moved_before = num_moved(fleet)

    def client_loop(number: int) -> None:
        order = random.Random(number)
        with httpx.Client(timeout=REQUEST_TIMEOUT_S, trust_env=False) as client:
            while not done.is_set():
                index = order.randrange(len(bodies))
                started = time.monotonic()
                outcome: ClientOutput | str
                try:
                    outcome = _ask(client, url, bodies[index])
                except ServerError as error:
                    outcome = str(error)
                with lock:
                    report.num_requests += 1
                    report.slowest_s = max(report.slowest_s, time.monotonic() - started)
                    if isinstance(outcome, str):
                        report.failures.append(f"{names[index]}: {outcome}")
                        note(f"failed: {report.failures[-1]}")
                    elif outcome != expected[index]:
                        report.differences.append(f"{names[index]}: {outcome} instead of {expected[index]}")
                        note(f"different: {report.differences[-1]}")

    with ThreadPoolExecutor(_NUM_CLIENTS) as pool:
        clients = [pool.submit(client_loop, number) for number in range(_NUM_CLIENTS)]
        try:
            _kill_in_turn(fleet, url, model, num_kills, report, note)
        finally:
            done.set()
        for finished in clients:
            finished.result()
    report.num_moved = num_moved(fleet) - moved_before
    return report


def num_moved(fleet: Fleet) -> int:
    """Requests that the front end has moved to another worker since it was started."""
    front_end = next(service.state for service in fleet.services if service.name == FRONT_END)
    url = f"http://{reachable(front_end.host)}:{front_end.ports['http']}/metrics"
    text = httpx.get(url, timeout=10, trust_env=False).text
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return int(sum(sample.value for sample in samples if sample.name.endswith("model_migration_total")))


def _kill_in_turn(fleet: Fleet, url: str, model: str, num_kills: int, report: FailoverReport, note: Note) -> None:
    moments = random.Random(num_kills)
    while report.num_kills < num_kills:
        _wait_until_whole(fleet, url, model)
        time.sleep(moments.uniform(*_PAUSE_S))
        replica, is_server = divmod(report.num_kills, 2)
        replica %= len(fleet.servers)
        name = "tritonserver" if is_server else "pipeline.dynamo.worker"
        server_id = fleet.servers[replica].state.server_id if is_server else _worker_id(fleet, replica + 1)
        os.kill(_process(server_id, name), signal.SIGKILL)
        report.num_kills += 1
        note(f"kill {report.num_kills} of {num_kills}: {name} of replica {replica + 1}; {report.num_requests} answers")
    _wait_until_whole(fleet, url, model)


def _wait_until_whole(fleet: Fleet, url: str, model: str) -> None:
    """Until every process serves again."""
    deadline = time.monotonic() + _RETURN_TIMEOUT_S
    while not (
        all(is_ready(server.state) for server in fleet.servers)
        and all(service.service.is_ready() for service in fleet.services)
        and lists_model(f"{url}/models", model)
    ):
        ended = [running.name for running in fleet.running if running.poll() is not None]
        if ended or time.monotonic() > deadline:
            raise ServerError(f"{', '.join(ended) or 'A killed process'} did not come back.")
        time.sleep(_POLL_S)


def _worker_id(fleet: Fleet, number: int) -> str:
    return next(service.state.server_id for service in fleet.services if service.name == f"worker-{number}")


def _process(server_id: str, name: str) -> int:
    """The process of a guard's that does the work. Raises ServerError if it is not there."""
    for pid in marked_processes(server_id):
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            if any(word == name or word.endswith(f"/{name}") for word in words):
                return pid
    raise ServerError(f"There is no process of {name} to kill.")


def _body(model: str, prompt: str, max_tokens: int, kind: Kind) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens, **kind.fields}


def _ask(client: httpx.Client, url: str, body: Mapping[str, Any]) -> ClientOutput:
    """One answer. Raises ServerError for any other outcome."""
    try:
        response = client.post(f"{url}/chat/completions", json=body)
    except httpx.TimeoutException as error:
        raise ServerError(f"no answer within {REQUEST_TIMEOUT_S:.0f} s") from error
    except httpx.HTTPError as error:
        raise ServerError(f"the OpenAI API cannot be reached: {error!r}") from error
    if response.status_code != 200:
        raise ServerError(f"status {response.status_code}: {response.text[:200]}")
    answer = response.json()
    choice, usage = answer["choices"][0], answer["usage"]
    return ClientOutput(
        choice["message"]["content"] or "", choice["finish_reason"], usage["prompt_tokens"], usage["completion_tokens"]
    )
