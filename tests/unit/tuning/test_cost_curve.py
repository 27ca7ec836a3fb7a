"""The cost curve is measured within the engine's limits and leaves no state."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import pytest

from pipeline.decoding.planning.cost import CostCurve, CostPoint
from pipeline.engine.contract import VerifyItem
from pipeline.tuning.cost_curve import CostGrid, critical_decoding_length, grid_for, measure, sizes_that_fit
from tests.fakes import TableEngine, TableLogits


class Counting(TableEngine):
    """Records the shape of every pass: sequences and tokens."""

    def __init__(self, **limits: int) -> None:
        super().__init__(limits=dataclasses.replace(TableEngine().limits, **limits))
        self.passes: list[tuple[int, int]] = []

    def verify(self, items: Sequence[VerifyItem]) -> list[TableLogits | None]:
        pending = sum(item.sequence.num_pending if item.num_pending is None else item.num_pending for item in items)
        self.passes.append((len(items), pending + sum(len(item.tree) for item in items)))
        return super().verify(items)


def test_every_size_is_measured_with_warm_up_and_repeats_and_released() -> None:
    engine = Counting(max_batch_size=2)
    points = measure(engine, CostGrid(batch_sizes=(1, 2, 4), context_lengths=(16,), num_repeats=3))
    assert not engine.held
    assert {(point.batch_size, point.num_tokens // point.batch_size) for point in points} == {
        (batch, size) for batch in (1, 2) for size in (1, 2, 4, 8, 12, 16, 24, 32, 48, 64) if size * batch <= 128
    }
    for point in points:
        assert point.seconds > 0
        assert engine.passes.count((point.batch_size, point.num_tokens)) >= 4
    CostCurve(tuple(points))


def test_sizes_that_would_outgrow_a_sequence_are_left_out() -> None:
    limits = dataclasses.replace(TableEngine().limits, max_seq_len=64, max_draft_tokens=16)
    grid = CostGrid(num_repeats=2)
    assert sizes_that_fit(limits, grid, 1, 16) == [1, 2, 4, 8, 12, 16]
    assert sizes_that_fit(limits, grid, 1, 40) == [1, 2, 4, 8]
    assert sizes_that_fit(limits, grid, 1, 64) == []


@pytest.mark.parametrize("max_seq_len", [16, 17, 40, 100, 129])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_an_engine_of_any_size_gets_a_curve(max_seq_len: int, device: Literal["cpu", "cuda"]) -> None:
    engine = Counting(max_seq_len=max_seq_len, max_num_tokens=8, max_draft_tokens=3)
    for fine in (False, True):
        points = measure(engine, grid_for(device, fine=fine))
        assert CostCurve(tuple(points)).seconds_up_to(4, 1, max_seq_len)[-1] > 0
        assert {point.context_len for point in points} == {max_seq_len // 4}


def test_the_critical_decoding_length_ends_where_a_pass_gets_slower() -> None:
    def points(*times: float, context_len: int = 128, batch_size: int = 1) -> list[CostPoint]:
        return [
            CostPoint(tokens * batch_size, batch_size, context_len, seconds)
            for tokens, seconds in zip((1, 2, 4, 8), times, strict=True)
        ]

    others = [*points(9, 9, 9, 9, batch_size=4), *points(1, 5, 5, 5, context_len=1024)]
    assert critical_decoding_length([*points(1.0, 1.05, 1.1, 1.5), *others]) == 3
    assert critical_decoding_length([*points(1.0, 1.02, 1.05, 1.09), *others]) == 7
    assert critical_decoding_length([*points(1.0, 2.0, 4.0, 8.0), *others]) == 0
    # Between two measured passes time is linear: 6 tokens take 1.1.
    assert critical_decoding_length([*points(1.0, 1.0, 1.0, 1.2), *others]) == 5


def test_long_contexts_are_prefilled_in_passes_that_fit() -> None:
    engine = Counting(max_num_tokens=8, max_draft_tokens=3)
    points = measure(engine, CostGrid(batch_sizes=(1,), context_lengths=(50,), num_repeats=1))
    assert [point.num_tokens for point in points] == [1, 2, 4]
    assert max(tokens for _, tokens in engine.passes) == 8


def test_the_time_is_that_of_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10**6))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)))
    points = measure(Counting(max_draft_tokens=1), CostGrid(batch_sizes=(1,), context_lengths=(4,), num_repeats=2))
    assert [point.seconds for point in points] == [1.0, 1.0]


def test_of_disturbed_repeats_the_least_time_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    durations = iter([9.0, 1.0, 9.0, 3.0])  # the first warms up

    class Slow(Counting):
        def verify(self, items: Sequence[VerifyItem]) -> list[TableLogits | None]:
            if items[0].num_pending is None:
                now[0] += next(durations)
            return super().verify(items)

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    grid = CostGrid(tokens_per_sequence=(1,), batch_sizes=(1,), context_lengths=(4,), num_repeats=3)
    assert [point.seconds for point in measure(Slow(), grid)] == [1.0]


class Timed(Counting):
    """An engine whose clock advances by a number of seconds per token of each pass."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds_per_token: float, **limits: int) -> None:
        super().__init__(**limits)
        self.now = 0.0
        self._seconds_per_token = seconds_per_token
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def verify(self, items: Sequence[VerifyItem]) -> list[TableLogits | None]:
        results = super().verify(items)
        self.now += self._seconds_per_token * self.passes[-1][1]
        return results


GRID = CostGrid((1, 2, 4, 8), (1, 2), (16,), max_pass_tokens=16, num_repeats=3)


def test_measuring_ends_in_time_with_fewer_repeats_and_all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = measure(Timed(monkeypatch, 0.1), GRID)
    engine = Timed(monkeypatch, 0.1)
    points = measure(engine, GRID, max_seconds=14.0)
    assert [(p.num_tokens, p.batch_size, p.seconds) for p in points] == [
        (p.num_tokens, p.batch_size, pytest.approx(p.seconds)) for p in everything
    ]
    assert engine.now <= 14.0
    assert engine.passes.count((1, 8)) < 4


def test_on_a_slow_machine_there_are_fewer_sizes_and_always_two(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Timed(monkeypatch, 1.0)
    points = measure(slow, GRID, max_seconds=40.0)
    assert [p.num_tokens for p in points if p.batch_size == 1] == [1, 2, 4]
    slower = Timed(monkeypatch, 100.0)
    points = measure(slower, GRID, max_seconds=40.0)
    assert [(p.num_tokens, p.batch_size) for p in points] == [(1, 1), (2, 1)]
    assert not slower.held


@pytest.mark.parametrize("num_disturbed", [1, 2])
def test_a_first_pass_that_was_disturbed_is_measured_again_without_time_left(monkeypatch, num_disturbed):
    """It was the only one of its size: with 1.2 s for 4 tokens and 0.04 s for one, no request ever got drafts."""

    class Disturbed(Timed):
        def verify(self, items: Sequence[VerifyItem]) -> list[TableLogits | None]:
            results = super().verify(items)
            if self.passes[-1] == (1, 4) and self.passes.count((1, 4)) <= num_disturbed:
                self.now += 50.0
            return results

    engine = Disturbed(monkeypatch, 0.1)
    points = measure(engine, replace(GRID, batch_sizes=(1,)), max_seconds=10.0)

    assert [(p.num_tokens, p.seconds) for p in points] == [(size, pytest.approx(size / 10)) for size in (1, 2, 4)]
    assert engine.passes.count((1, 4)) == num_disturbed + 1


def test_a_context_that_cannot_be_computed_in_time_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Timed(monkeypatch, 1.0, max_num_tokens=16)
    points = measure(engine, replace(GRID, batch_sizes=(1,), context_lengths=(16, 90)), max_seconds=80.0)
    assert {p.context_len for p in points} == {16}
    assert engine.now <= 80.0 + 16.0
    assert not engine.held
