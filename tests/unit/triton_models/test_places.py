"""Places in an engine go round among those who wait; none is lost, whatever is cancelled when."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import BusyError
from pipeline.triton_models.places import Places, tenant_of


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 20))


async def settle() -> None:
    """Let every task go on until it waits."""
    for _ in range(20):
        await asyncio.sleep(0)


async def hold(places: Places, tenant: str, order: list[str], name: str, calls: int, clock: Clock, cost: float) -> None:
    """A request of so many calls, each of which takes a while."""
    async with places.place(tenant) as place:
        order.append(f"+{name}")
        for _ in range(calls):
            clock.now += cost
            await asyncio.sleep(0)
            await place.offer()
    order.append(f"-{name}")


def test_a_short_request_waits_for_a_slice_and_not_for_the_end_of_long_ones():
    async def work() -> list[str]:
        clock, order = Clock(), list[str]()
        places = Places(2, 8, slice_s=2.0, clock=clock)
        long = [asyncio.ensure_future(hold(places, "", order, f"long{i}", 100, clock, 0.5)) for i in range(2)]
        await settle()
        short = asyncio.ensure_future(hold(places, "", order, "short", 1, clock, 0.5))
        await short
        waited = list(order)
        await asyncio.gather(*long)
        return waited

    assert run(work()) == ["+long0", "+long1", "+short", "-short"]


def test_nobody_is_moved_while_nobody_waits():
    async def work() -> list[str]:
        clock, order = Clock(), list[str]()
        places = Places(1, 8, slice_s=2.0, clock=clock)
        await hold(places, "", order, "a", 50, clock, 10.0)
        await hold(places, "", order, "b", 50, clock, 10.0)
        return order

    assert run(work()) == ["+a", "-a", "+b", "-b"]


def test_tenants_take_turns_however_many_requests_one_of_them_sends():
    async def work() -> list[str]:
        clock, order = Clock(), list[str]()
        places = Places(1, 100, clock=clock)
        crowd = [asyncio.ensure_future(hold(places, "a", order, f"a{i}", 1, clock, 0.1)) for i in range(5)]
        crowd.append(asyncio.ensure_future(hold(places, "b", order, "b0", 1, clock, 0.1)))
        await asyncio.gather(*crowd)
        return [entry for entry in order if entry.startswith("+")]

    started = run(work())

    assert started.index("+b0") <= 2


def test_too_many_that_wait_are_refused_and_streams_that_come_back_are_not():
    async def work() -> None:
        clock = Clock()
        places = Places(1, 1, slice_s=0.0, clock=clock)
        async with places.place("") as place:
            waiting = asyncio.ensure_future(hold(places, "", [], "w", 1, clock, 0.0))
            await settle()
            with pytest.raises(BusyError, match="1 requests are waiting"):
                async with places.place(""):
                    raise AssertionError("no place is free")
            await place.offer()
        await waiting

    run(work())


EVENTS = st.lists(
    st.tuples(st.sampled_from(["start", "cancel", "tick"]), st.integers(0, 9), st.sampled_from("ab")), max_size=60
)


@given(EVENTS, st.integers(1, 3))
def test_every_place_is_free_again_when_all_are_over(events, num_places):
    async def work() -> None:
        clock = Clock()
        places = Places(num_places, 4, slice_s=0.3, clock=clock)
        tasks: list[asyncio.Task[None]] = []
        most = 0
        for kind, number, tenant in events:
            if kind == "start":
                tasks.append(asyncio.ensure_future(hold(places, tenant, [], "x", number, clock, 0.1)))
            elif kind == "cancel" and tasks:
                tasks[number % len(tasks)].cancel()
            else:
                await asyncio.sleep(0)
            most = max(most, num_places - places._num_free)
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
        assert places._num_free == num_places
        assert most <= num_places
        assert not places.is_contended

    run(work())


@pytest.mark.parametrize(("namespace", "tenant"), [("", ""), ("x", ""), ("a/", "a"), ("a/b/c", "a")])
def test_the_tenant_of_a_namespace(namespace, tenant):
    assert tenant_of(namespace) == tenant
