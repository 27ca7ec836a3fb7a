"""Draft sources learn from a step after its tokens were sent, and before the next drafts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipeline.decoding.request import StepResult
from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.tree import DraftTree, IntArray, chain
from pipeline.engine.scheduler import Scheduler
from pipeline.engine.submission import StepEvent, Submission
from tests.fakes import HostileSource, make_request, plain_decode, table_logits
from tests.unit.engine.test_scheduler import make_scheduler


class Diary(HostileSource):
    """Drafts the right token, and writes down what happens to which text. texts: by request, as learned."""

    needs_top_k = 2

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[str] = []
        self.texts: dict[str, list[int]] = {}

    def start(self, request_id: str, prompt_ids: IntArray, namespace: str) -> None:
        self.texts[request_id] = prompt_ids.tolist()

    def propose(self, request_id: str, context: IntArray, budget: DraftBudget) -> DraftTree:
        assert self.texts[request_id] == context.tolist(), "drafts of a text that was not learned"
        assert not self.entries or self.entries[-1] != "sent", "drafts before something else was learned"
        self.entries.append("propose")
        return chain([int(table_logits(context.tolist()).argmax())])

    def update(self, request_id: str, step: StepResult, nodes: IntArray) -> None:
        assert step.top_ids is not None
        assert len(step.top_ids) == len(step.tree) + 1
        self.entries.append("learn")
        self.texts[request_id] += step.token_ids

    def stop(self, request_id: str) -> None:
        self.texts.pop(request_id, None)


def diary_scheduler() -> tuple[Scheduler, Diary]:
    diary = Diary()
    return make_scheduler(source=diary), diary


def test_all_tokens_of_a_pass_are_sent_before_anything_is_learned() -> None:
    scheduler, diary = diary_scheduler()
    for first in (1, 2):
        scheduler.submit(Submission(make_request([first], 4), "hybrid"), lambda event: diary.entries.append("sent"))
    scheduler.step()
    scheduler.step()
    assert diary.entries == (["propose"] * 2 + ["sent"] * 2 + ["learn"] * 2) * 2
    assert diary.texts == {}


def test_a_call_that_follows_at_once_finds_everything_learned_and_its_slot_free() -> None:
    scheduler, diary = diary_scheduler()
    first = make_request([1, 2], 12)
    output: list[int] = []

    def follow(event: StepEvent) -> None:
        diary.entries.append("sent")
        output.extend(event.token_ids)
        if event.done and len(output) < first.max_new_tokens:
            prompt = np.asarray([1, 2, *output], np.int32)
            call = replace(first, prompt_ids=prompt, max_new_tokens=first.max_new_tokens - len(output))
            scheduler.submit(Submission(call, "hybrid", max_steps=1, to_be_continued=True), follow)

    scheduler.submit(Submission(first, "hybrid", max_steps=1, to_be_continued=True), follow)
    while scheduler._has_work():
        scheduler.step()
    assert output == plain_decode(first)
    assert diary.entries == ["propose", "sent", "learn"] * 6


def test_sources_that_cannot_learn_end_no_request(caplog: pytest.LogCaptureFixture) -> None:
    scheduler, _ = diary_scheduler()
    scheduler.drafter.reliability.add = None  # type: ignore[assignment, method-assign]
    requests = [make_request([first], 6) for first in (1, 2)]
    results = scheduler.run([Submission(request, "hybrid") for request in requests])
    assert [result.output_ids for result in results] == [plain_decode(request) for request in requests]
    assert "could not learn" in caplog.text
    assert scheduler.engine.held == []  # type: ignore[attr-defined]
