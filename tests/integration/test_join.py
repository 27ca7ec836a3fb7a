"""A second run folder joins the fleet of the first one, as another machine would that shares the discovery folder."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import openai
import pytest

from pipeline.config.folders import Folders
from pipeline.dynamo.exchange import switch_fleet
from pipeline.dynamo.fleet import Fleet, check_fleet, openai_url, start_fleet, stop_fleet
from pipeline.dynamo.running_fleet import as_running
from pipeline.errors import ServerError
from pipeline.server.discovery import FILE_KV
from pipeline.server.metrics import read_metrics
from pipeline.server.run_folders import free_dir, serving_dir
from pipeline.server.service import find_services
from pipeline.server.startup import PreparedServer, prepare
from pipeline.server.switch import resolve_other, running_served
from tests.integration.servers import TORCH, prepared
from tests.own_folders import own_folders
from tests.patience import PATIENCE_S
from tests.servers import wait_for

pytestmark = [pytest.mark.triton, pytest.mark.slow]
SETTINGS = ("server.openai=true", "drafting.planner=fixed")
INT8 = "engine.quantization=int8"


class First(NamedTuple):
    """The machine with the front end. base: its run folder."""

    served: PreparedServer
    where: Folders
    base: Path
    fleet: Fleet
    client: openai.OpenAI

    def answer(self, prompt: str, max_tokens: int = 8) -> str:
        """A greedy output: noise, which does not depend on the engine, would decide most sampled tokens."""
        asked = {"model": "tiny-random-llama", "max_tokens": max_tokens, "temperature": 0}
        return self.client.completions.create(prompt=prompt, **asked).choices[0].text

    def answers(self) -> list[str]:
        return [self.answer(f"{n} words") for n in range(8)]


def output_tokens(fleet: Fleet) -> float:
    return read_metrics(fleet.state.metrics_url)["lookahead_output_tokens_total"]


@pytest.fixture
def first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[First]:
    monkeypatch.setenv(FILE_KV, str(tmp_path / "shared"))
    monkeypatch.setenv("DYN_TCP_RPC_HOST", "127.0.0.1")
    monkeypatch.setenv("DYN_TCP_RESPONSE_STREAM_HOST", "lo")
    where, base = own_folders(tmp_path), tmp_path / "first"
    served = prepared(where, *SETTINGS)
    check_fleet(served.resolved, join=True)
    fleet = start_fleet(served, where, base, detach=True)
    try:
        client = openai.OpenAI(base_url=openai_url(base), api_key="none", max_retries=0, timeout=PATIENCE_S)
        yield First(served, where, base, fleet, client)
    finally:
        stop_fleet(serving_dir(base))
        stop_fleet(free_dir(base))


def test_a_machine_that_joins_gets_requests_and_may_leave(first: First, tmp_path: Path) -> None:
    # Tokens are counted a little after the end of their request.
    alone, before = first.answers(), wait_for(lambda: (found := output_tokens(first.fleet)) >= 64 and found)
    second = start_fleet(first.served, first.where, tmp_path / "second", join=True)
    try:
        together = first.answers()
        wait_for(lambda: output_tokens(first.fleet) + output_tokens(second) >= before + 64)
        both = output_tokens(second)
    finally:
        second.stop()
    assert openai_url(tmp_path / "second") is None
    assert 0 < both < 64
    assert output_tokens(first.fleet) == before + 64 - both
    assert alone == together == first.answers()


def test_a_machine_with_another_quantization_does_not_join(first: First, tmp_path: Path) -> None:
    alone = first.answers()
    where = own_folders(tmp_path / "other")

    with pytest.raises(
        ServerError,
        match=r"This machine may give other tokens .*engine.quantization int8 instead of none at 127.0.0.1. Serve",
    ):
        start_fleet(prepared(where, *SETTINGS, INT8), where, tmp_path / "second", join=True)

    assert not find_services(tmp_path / "second")
    assert first.answers() == alone


def test_a_switch_to_another_quantization_leaves_the_other_machines_behind(first: First, tmp_path: Path) -> None:
    """No request moves between int8 and float32: each has the whole output of one of them."""
    prompt, max_tokens, stop, notes = "the rat", 60, threading.Event(), list[str]()
    second = start_fleet(first.served, first.where, tmp_path / "second", join=True)

    def keep_asking() -> list[str]:
        answers = []
        while not stop.is_set():
            answers.append(first.answer(prompt, max_tokens))
        return answers

    try:
        plain = first.answer(prompt, max_tokens)
        before = running_served(first.where, first.base)
        other = resolve_other(before, "throughput", (*TORCH, SETTINGS[1], INT8), first.where)
        after = prepare(other, first.where)
        with ThreadPoolExecutor() as pool:
            clients = [pool.submit(keep_asking) for _ in range(3)]
            try:
                served = [as_running(each, first.base) for each in (before, after)]
                new = switch_fleet(served[0], served[1], first.where, first.base, notes.append)
            finally:
                stop.set()
            answers = {answer for client in clients for answer in client.result()}

        quantized = first.answer(prompt, max_tokens)
        assert quantized != plain
        assert answers == {plain, quantized}
        assert "may give other tokens: engine.max_seq_len" in notes[-1]
        assert "engine.quantization int8 instead of none at 127.0.0.1" in notes[-1]
        counts = output_tokens(second), output_tokens(new)
        assert {first.answer(prompt, max_tokens) for _ in range(4)} == {quantized}
        wait_for(lambda: output_tokens(new) >= counts[1] + 4 * max_tokens)
        assert output_tokens(second) == counts[0]
    finally:
        second.stop()
