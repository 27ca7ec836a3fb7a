from __future__ import annotations

from pipeline.decoding.continuations import store_step
from pipeline.decoding.growth import grow, learn_from_step
from pipeline.decoding.warm_up import warm_up


def num_compiled() -> list[int]:
    return [len(loop.signatures) for loop in (grow, learn_from_step, store_step)]  # type: ignore[attr-defined]


def test_afterwards_the_loops_are_compiled_and_a_second_time_changes_nothing() -> None:
    warm_up()
    first = num_compiled()
    assert all(first)
    warm_up()
    assert num_compiled() == first
