"""A second run folder joins the fleet of the first one, as another machine would that shares the discovery folder."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import openai
import pytest

from pipeline.config.folders import Folders
from pipeline.dynamo.fleet import Fleet, check_fleet, openai_url, start_fleet, stop_fleet
from pipeline.dynamo.fleet_switch import switch_fleet
from pipeline.dynamo.running_fleet import as_running
from pipeline.errors import ServerError
from pipeline.server.discovery import FILE_KV
from pipeline.server.run_folders import free_dir, serving_dir
from pipeline.server.service import find_services
from pipeline.server.startup import PreparedServer, prepare
from pipeline.server.switch import resolve_other, running_served
from tests.integration.servers import TORCH, metrics_of, prepared
from tests.own_folders import own_folders
from tests.patience import PATIENCE_S
from tests.servers import wait_for

pytestmark = [pytest.mark.triton, pytest.mark.slow]
SETTINGS = ("server.openai=true", "drafting.planner=fixed")
INT8 = "engine.quantization=int8"
# A new profile has other limits than the old one.
OTHER_LEN = "engine.max_seq_len=2048"


@dataclass
class First:
    """The machine with the front end. base: its run folder. num_tokens: of all outputs so far."""

    served: PreparedServer
    where: Folders
    base: Path
    fleet: Fleet
    client: openai.OpenAI
    num_tokens: int = 0

    def answer(self, prompt: str, max_tokens: int = 8) -> str:
        """A greedy output: noise, which does not depend on the engine, would decide most sampled tokens."""
        asked = {"model": "tiny-random-llama", "max_tokens": max_tokens, "temperature": 0}
        answer = self.client.completions.create(prompt=prompt, **asked)
        self.num_tokens += answer.usage.completion_tokens
        return answer.choices[0].text

    def answers(self) -> list[str]:
        return [self.answer(f"{n} words") for n in range(8)]


def output_tokens(fleet: Fleet) -> float:
    return metrics_of(fleet.state.metrics_url)["lookahead_output_tokens_total"]


@contextmanager
def started(where: Folders, base: Path) -> Iterator[First]:
    """The first machine of a fleet with a discovery folder of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FILE_KV, str(base / "shared"))
        patch.setenv("DYN_TCP_RPC_HOST", "127.0.0.1")
        patch.setenv("DYN_TCP_RESPONSE_STREAM_HOST", "lo")
        served = prepared(where, *SETTINGS)
        check_fleet(served.resolved, join=True)
        fleet = start_fleet(served, where, base, detach=True)
        try:
            client = openai.OpenAI(base_url=openai_url(base), api_key="none", max_retries=0, timeout=PATIENCE_S)
            yield First(served, where, base, fleet, client)
        finally:
            stop_fleet(serving_dir(base))
            stop_fleet(free_dir(base))


@pytest.fixture(scope="module")
def first(where: Folders, tmp_path_factory: pytest.TempPathFactory) -> Iterator[First]:
    with started(where, tmp_path_factory.mktemp("first")) as first:
        yield first


@pytest.fixture
def switched(where: Folders, tmp_path: Path) -> Iterator[First]:
    """For a test that switches the profile."""
    with started(where, tmp_path / "first") as first:
        yield first


def test_a_machine_that_joins_gets_requests_and_may_leave(first: First, tmp_path: Path) -> None:
    alone = first.answers()
    second = start_fleet(first.served, first.where, tmp_path / "second", join=True)

    def counts() -> tuple[float, float]:
        """Tokens of both machines, which are counted a little after the end of their request."""
        wait_for(lambda: output_tokens(first.fleet) + output_tokens(second) >= first.num_tokens)
        return output_tokens(first.fleet), output_tokens(second)

    def share() -> float:
        """Tokens that the second machine has put out for eight requests; none until the front end has found it."""
        before = counts()[1]
        assert first.answers() == alone
        return counts()[1] - before

    try:
        found = wait_for(share)
        assert sum(counts()) == first.num_tokens
    finally:
        second.stop()
    assert openai_url(tmp_path / "second") is None
    assert 0 < found < 64
    assert first.answers() == alone


def test_a_machine_with_another_quantization_does_not_join(first: First, tmp_path: Path) -> None:
    alone = first.answers()
    where = own_folders(tmp_path / "other")

    with pytest.raises(
        ServerError,
        match=r"may give other tokens .*engine.quantization int8, smoothing 1 instead of none at 127.0.0.1. Serve",
    ):
        start_fleet(prepared(where, *SETTINGS, INT8), where, tmp_path / "second", join=True)

    assert not find_services(tmp_path / "second")
    assert first.answers() == alone


def test_the_machines_of_a_fleet_switch_to_another_quantization_one_after_the_other(
    switched: First, tmp_path: Path
) -> None:
    """No request moves between int8 and float32: each has the whole output of one of them."""
    prompt, max_tokens, notes, second_base = "the rat", 60, list[str](), tmp_path / "second"
    second = start_fleet(switched.served, switched.where, second_base, join=True, detach=True)
    before = running_served(switched.where, switched.base)
    settings = (*TORCH, SETTINGS[1], INT8, OTHER_LEN)
    after = prepare(resolve_other(before, "throughput", settings, switched.where), switched.where)

    def switch(base: Path) -> Fleet:
        old, new = (as_running(each, serving_dir(base)) for each in (before, after))
        return switch_fleet(old, new, switched.where, base, notes.append, "`this`")

    def answers_during_switch(base: Path) -> tuple[Fleet, set[str]]:
        stop, begun = threading.Event(), threading.Semaphore(0)

        def keep_asking() -> set[str]:
            answers = {switched.answer(prompt, max_tokens)}
            begun.release()
            while not stop.is_set():
                answers.add(switched.answer(prompt, max_tokens))
            return answers | {switched.answer(prompt, max_tokens)}

        with ThreadPoolExecutor() as pool:
            clients = [pool.submit(keep_asking) for _ in range(3)]
            try:
                for _ in clients:
                    assert begun.acquire(timeout=PATIENCE_S)
                fleet = switch(base)
            finally:
                stop.set()
            return fleet, set.union(*(client.result() for client in clients))

    try:
        plain = switched.answer(prompt, max_tokens)
        with pytest.raises(
            ServerError, match=r"engine.quantization int8, smoothing 1 instead of none .* Switch 127.0.0.1 first"
        ):
            switch(second_base)
        new, answers = answers_during_switch(switched.base)

        quantized = switched.answer(prompt, max_tokens)
        assert quantized != plain
        assert answers == {plain, quantized}
        assert "may give other tokens: engine.max_seq_len" in notes[-1]
        assert notes[-1].endswith(
            "engine.quantization int8, smoothing 1 instead of none at 127.0.0.1. Run there: `this`"
        )
        counts = output_tokens(second), output_tokens(new)
        assert {switched.answer(prompt, max_tokens) for _ in range(4)} == {quantized}
        wait_for(lambda: output_tokens(new) >= counts[1] + 4 * max_tokens)
        assert output_tokens(second) == counts[0]

        follower, answers = answers_during_switch(second_base)
        assert answers == {quantized}
        assert openai_url(serving_dir(second_base)) is None
        count = output_tokens(follower)
        assert {switched.answer(f"{prompt} {n}", 8) for n in range(8)}
        wait_for(lambda: output_tokens(follower) > count)
    finally:
        for folder in (serving_dir(second_base), free_dir(second_base)):
            stop_fleet(folder)
