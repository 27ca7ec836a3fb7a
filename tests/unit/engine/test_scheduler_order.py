"""Order of sequences if a pass cannot hold all: verify steps, then prompts in order of arrival."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.engine.contract import EngineLimits, VerifyItem
from pipeline.engine.scheduler import Scheduler
from pipeline.engine.submission import StepEvent, Submission
from tests.fakes import VOCAB_SIZE, TableEngine, TableLogits, make_request, make_scheduler


class RecordingEngine(TableEngine):
    """Keeps, of each pass, the first token of every sequence in it and how many pending tokens it computes."""

    def __init__(self, limits: EngineLimits) -> None:
        super().__init__(limits)
        self.passes: list[list[tuple[int, int]]] = []

    def verify(self, items: Sequence[VerifyItem]) -> list[TableLogits | None]:
        self.passes.append([(item.sequence.tokens[0], item.num_pending) for item in items])  # type: ignore[attr-defined, misc]
        return super().verify(items)


def recording_scheduler(max_num_tokens: int) -> tuple[Scheduler, RecordingEngine]:
    engine = RecordingEngine(EngineLimits(4, 256, max_num_tokens, 64, VOCAB_SIZE))
    scheduler = make_scheduler(engine=TableEngine(engine.limits))
    scheduler.engine = engine
    return scheduler, engine


def test_prompts_are_computed_in_the_order_in_which_they_came() -> None:
    scheduler, engine = recording_scheduler(20)
    for first in (1, 2, 3):
        request = make_request([first] * 30, 4)
        scheduler.submit(Submission(request, "none"), lambda event: None)
    for _ in range(3):
        scheduler.step()
    # 16 tokens are a chunk; the rest of a pass goes to the next prompt.
    assert engine.passes[0] == [(1, 16), (2, 4)]
    assert engine.passes[1] == [(1, 14), (2, 6)]
    assert engine.passes[2][0] == (1, 1)


def test_sequences_that_decode_come_before_prompts_and_keep_their_order() -> None:
    scheduler, engine = recording_scheduler(20)
    events: list[StepEvent] = []
    for first in (1, 2):
        scheduler.submit(Submission(make_request([first, 4], 8), "none"), events.append)
    scheduler.step()
    scheduler.submit(Submission(make_request([3] * 40, 8), "none"), events.append)
    scheduler.step()
    assert engine.passes[1] == [(1, 1), (2, 1), (3, 16)]
    assert np.all([not event.done for event in events])


def test_the_longest_admitted_prompt_comes_first_and_then_the_shortest() -> None:
    scheduler, engine = recording_scheduler(20)
    for first, length in ((1, 60), (2, 40), (3, 10)):
        scheduler.submit(Submission(make_request([first] * length, 4), "none"), lambda event: None)
    scheduler.step()
    scheduler.step()
    assert engine.passes == [[(1, 16), (3, 4)], [(1, 16), (3, 4)]]
