"""Streams over an engine without a free slot for their next step."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pipeline.errors import BusyError
from pipeline.triton_models.generation import Generation
from tests.patience import PATIENCE_S
from tests.unit.triton_models.fakes import TableTarget, text_tensors
from tests.unit.triton_models.test_bls import answers_of, expected_ids, letters, make_bls, run, run_in, text_of


class BusyTarget(TableTarget):
    """Refuses calls as busy. refused: their numbers, from 0."""

    refused: range = range(0)
    num_calls = 0

    async def call(self, *arguments: Any) -> Any:
        self.num_calls += 1
        if self.num_calls - 1 in self.refused:
            raise BusyError("busy: 4 requests are waiting already; send the request again later")
        return await super().call(*arguments)


@pytest.mark.parametrize("strategy", ["none", "trie"])
def test_a_stream_outlasts_a_busy_engine(strategy):
    target = BusyTarget()
    target.refused = range(2, 5)

    answers = run_in(make_bls(target), text_tensors("ccddccddcc", 40, strategy=strategy, stream=True))

    assert text_of(answers) == letters(expected_ids("ccddccddcc", 40))


def test_a_busy_engine_refuses_a_request_that_has_not_begun():
    target = BusyTarget()
    target.refused = range(1)

    with pytest.raises(BusyError, match="waiting already"):
        run_in(make_bls(target), text_tensors("bcd", 5))
    assert target.num_calls == 1


def test_a_stream_does_not_wait_for_a_busy_engine_for_ever(monkeypatch):
    monkeypatch.setattr("pipeline.triton_models.engine_binding.BUSY_PATIENCE_S", 0.05)
    target = BusyTarget()
    target.refused = range(1, 1000)

    with pytest.raises(BusyError, match="waiting already"):
        run_in(make_bls(target), text_tensors("ccddccddcc", 40, strategy="none", stream=True))
    assert not target.engine.held


def test_a_client_may_leave_while_the_engine_is_busy():
    target = BusyTarget()
    target.refused = range(1, 1000)
    bls = make_bls(target)
    ended: list[Generation] = []

    async def leave() -> None:
        asked = text_tensors("ccddccddcc", 40, strategy="none", stream=True)
        task = asyncio.ensure_future(answers_of(bls, asked, on_end=ended.append))
        while target.num_calls < 2:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task], timeout=PATIENCE_S)
        assert task.cancelled()

    run(leave())

    assert [metrics.outcome for metrics in ended] == ["cancelled"]
