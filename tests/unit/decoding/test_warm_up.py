"""The warm-up compiles the loops."""

from __future__ import annotations

from pipeline.decoding.drafting import growth, learning, proposals, recent_rows, reliability
from pipeline.decoding.drafting.continuations import store_step
from pipeline.decoding.planning import planner
from pipeline.decoding.warm_up import warm_up


def num_compiled() -> list[int]:
    loops = (
        growth.grow,
        learning._learn,
        planner._best_plan,
        planner._order,
        proposals._merge,
        recent_rows._depths,
        reliability._add,
        store_step,
    )
    return [len(loop.signatures) for loop in loops]  # type: ignore[attr-defined]


def test_afterwards_the_loops_are_compiled_and_a_second_time_changes_nothing() -> None:
    warm_up()
    first = num_compiled()
    assert all(first)
    warm_up()
    assert num_compiled() == first
