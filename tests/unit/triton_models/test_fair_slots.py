"""Slots of an engine rotate among waiting requests; no slot is lost when requests are cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import BusyError
from pipeline.triton_models.fair_slots import FairSlots, split_namespace
from tests.patience import PATIENCE_S


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, PATIENCE_S))


async def settle() -> None:
    """Let every task go on until it waits."""
    for _ in range(20):
        await asyncio.sleep(0)


async def hold(
    slots: FairSlots, tenant: str, order: list[str], name: str, calls: int, clock: Clock, cost: float
) -> None:
    """A request of several calls, each with a cost in time."""
    async with slots.slot(tenant) as slot:
        order.append(f"+{name}")
        for _ in range(calls):
            clock.now += cost
            await asyncio.sleep(0)
            await slot.offer()
    order.append(f"-{name}")


def test_a_short_request_waits_for_a_slice_and_not_for_the_end_of_long_ones():
    async def work() -> list[str]:
        clock, order = Clock(), list[str]()
        slots = FairSlots(2, 8, slice_s=2.0, clock=clock)
        long = [asyncio.ensure_future(hold(slots, "", order, f"long{i}", 100, clock, 0.5)) for i in range(2)]
        await settle()
        short = asyncio.ensure_future(hold(slots, "", order, "short", 1, clock, 0.5))
        await short
        waited = list(order)
        await asyncio.gather(*long)
        return waited

    assert run(work()) == ["+long0", "+long1", "+short", "-short"]


def test_a_request_keeps_its_slot_for_two_seconds():
    async def work() -> list[list[str]]:
        clock, order, seen = Clock(), list[str](), []
        clock.now = 5.0
        slots = FairSlots(1, 8, clock=clock)
        async with slots.slot("") as slot:
            waiting = asyncio.ensure_future(hold(slots, "", order, "w", 1, clock, 0.0))
            await settle()
            for clock.now in (5.0, 6.9, 7.0):
                await slot.offer()
                seen.append(list(order))
        await waiting
        return seen

    assert run(work()) == [[], [], ["+w", "-w"]]


def test_no_request_is_moved_while_none_waits():
    async def work() -> list[str]:
        clock, order = Clock(), list[str]()
        slots = FairSlots(1, 8, slice_s=2.0, clock=clock)
        await hold(slots, "", order, "a", 50, clock, 10.0)
        await hold(slots, "", order, "b", 50, clock, 10.0)
        return order

    assert run(work()) == ["+a", "-a", "+b", "-b"]


def test_tenants_take_turns_however_many_requests_one_of_them_sends():
    async def work() -> list[str]:
        clock, order = Clock(), list[str]()
        slots = FairSlots(1, 100, clock=clock)
        crowd = [asyncio.ensure_future(hold(slots, "a", order, f"a{i}", 1, clock, 0.1)) for i in range(5)]
        crowd.append(asyncio.ensure_future(hold(slots, "b", order, "b0", 1, clock, 0.1)))
        await asyncio.gather(*crowd)
        return [entry for entry in order if entry.startswith("+")]

    started = run(work())

    assert started.index("+b0") <= 2


def test_too_many_that_wait_are_refused_and_streams_that_come_back_are_not():
    async def work() -> None:
        clock = Clock()
        slots = FairSlots(1, 1, slice_s=0.0, clock=clock)
        async with slots.slot("") as slot:
            waiting = asyncio.ensure_future(hold(slots, "", [], "w", 1, clock, 0.0))
            await settle()
            with pytest.raises(BusyError, match="1 requests are waiting"):
                async with slots.slot(""):
                    raise AssertionError("no slot is free")
            await slot.offer()
        await waiting

    run(work())


def test_a_request_that_leaves_while_it_waits_lets_no_other_in():
    async def work() -> list[str]:
        slots, order = FairSlots(1, 8), list[str]()
        async with slots.slot(""):
            waiting = asyncio.ensure_future(hold(slots, "", order, "a", 1, Clock(), 0.0))
            await settle()
            waiting.cancel()
            await settle()
            assert not slots.is_contended
            later = asyncio.ensure_future(hold(slots, "", order, "b", 1, Clock(), 0.0))
            await settle()
            assert order == []
        await later
        return order

    assert run(work()) == ["+b", "-b"]


def test_the_slot_of_a_request_that_leaves_as_it_gets_one_is_not_lost():
    async def work() -> list[str]:
        slots, order = FairSlots(1, 8), list[str]()
        async with slots.slot(""):
            waiting = asyncio.ensure_future(hold(slots, "", order, "a", 1, Clock(), 0.0))
            await settle()
        waiting.cancel()  # before it runs again
        await settle()
        await hold(slots, "", order, "b", 1, Clock(), 0.0)
        return order

    assert run(work()) == ["+b", "-b"]


@pytest.mark.parametrize("num_others", [0, 2])
def test_a_request_that_leaves_as_its_turn_comes_is_passed_over(num_others):
    async def work() -> None:
        slots, order, names = FairSlots(1, 8), list[str](), ["a", *map(str, range(num_others))]
        async with slots.slot(""):
            first, *others = (asyncio.ensure_future(hold(slots, "", order, name, 1, Clock(), 0.0)) for name in names)
            await settle()
            first.cancel()  # and the slot is released before it runs again
        with pytest.raises(asyncio.CancelledError):
            await first
        await asyncio.gather(*others)
        assert order == [f"{sign}{name}" for name in names[1:] for sign in "+-"]

    run(work())


def test_no_slot_is_lost_when_thousands_leave_at_once():
    async def work() -> None:
        slots = FairSlots(1, 3000)
        crowd = [asyncio.ensure_future(hold(slots, str(i % 3), [], "x", 9, Clock(), 0.0)) for i in range(3000)]
        await settle()
        for task in crowd:
            task.cancel()
        outcomes = await asyncio.gather(*crowd, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} <= {type(None), asyncio.CancelledError}
        await hold(slots, "", [], "later", 1, Clock(), 0.0)

    run(work())


EVENTS = st.lists(
    st.tuples(st.sampled_from(["start", "cancel", "tick"]), st.integers(0, 9), st.sampled_from("ab")), max_size=60
)


@given(EVENTS, st.integers(1, 3))
def test_every_slot_is_free_again_when_all_are_over(events, num_slots):
    async def work() -> None:
        clock = Clock()
        slots = FairSlots(num_slots, 4, slice_s=0.3, clock=clock)
        tasks: list[asyncio.Task[None]] = []
        most = 0
        for kind, number, tenant in events:
            if kind == "start":
                tasks.append(asyncio.ensure_future(hold(slots, tenant, [], "x", number, clock, 0.1)))
            elif kind == "cancel" and tasks:
                tasks[number % len(tasks)].cancel()
            await asyncio.sleep(0)
            most = max(most, num_slots - slots._num_free)
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
        assert slots._num_free == num_slots
        assert most <= num_slots
        assert not slots.is_contended

    run(work())


@pytest.mark.parametrize(
    ("namespace", "tenant", "name"),
    [("", "", ""), ("x", "", "x"), ("a/", "a", ""), ("a/b/c", "a", "b/c"), ("/x", "", "x")],
)
def test_the_tenant_and_the_name_of_a_namespace(namespace, tenant, name):
    assert split_namespace(namespace) == (tenant, name)
