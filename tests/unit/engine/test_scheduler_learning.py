"""Draft sources learn from a step after its tokens were sent, and before the next drafts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from pipeline.config.schema import LookaheadConfig, RecyclingDraftConfig, SuppliedDraftConfig, TrieDraftConfig
from pipeline.decoding.drafting.drafter import Drafter
from pipeline.decoding.drafting.drafter_factory import create_drafter
from pipeline.decoding.planning.planner import AdaptivePlanner
from pipeline.decoding.request import SamplingParams, StepResult
from pipeline.decoding.session import Session
from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.sources.supplied import SuppliedSource
from pipeline.decoding.tree import DraftTree, IntArray, chain
from pipeline.engine.contract import NodeLogits, VerifyItem
from pipeline.engine.scheduler import Scheduler
from pipeline.engine.submission import StepEvent, Submission
from tests.fakes import VOCAB_SIZE, HostileSource, cost_curve, make_request, plain_decode, table_logits
from tests.logs import Logs
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

    def update(self, request_id: str, step: StepResult) -> None:
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
    while scheduler._queue.known:
        scheduler.step()
    assert output == plain_decode(first)
    assert diary.entries == ["propose", "sent", "learn"] * 6


def test_sources_that_cannot_learn_end_no_request(logs: Logs) -> None:
    scheduler, _ = diary_scheduler()
    scheduler.drafter.reliability.add = None  # type: ignore[assignment, method-assign]
    requests = [make_request([first], 6) for first in (1, 2)]
    results = scheduler.run([Submission(request, "hybrid") for request in requests])
    assert [result.output_ids for result in results] == [plain_decode(request) for request in requests]
    assert "could not learn" in logs.text
    assert scheduler.engine.held == []  # type: ignore[attr-defined]


class Costly(Diary):
    """Drafts wrong tokens with a probability, so that a planner expects something of them."""

    def propose(self, request_id: str, context: IntArray, budget: DraftBudget) -> DraftTree:
        right = super().propose(request_id, context, budget)
        token = int(right.token_ids[0])
        return chain([token if self.is_right else (token + 1) % VOCAB_SIZE], [0.5])

    is_right = False

    def update(self, request_id: str, step: StepResult) -> None:
        self.entries.append("learn")
        self.texts[request_id] += step.token_ids
        assert len(step.tree) or len(step.token_ids) == 1 or step.top_ids is None


class TimedPlanner(AdaptivePlanner):
    """Every pass takes 0.1 s. The engine's own would be that of a table."""

    def __init__(self) -> None:
        super().__init__(cost_curve([(1, 1, 0, 0.1), (100, 1, 0, 0.101)]))
        self.seconds: list[float] = []

    def record(self, seconds: float) -> None:
        self.seconds.append(seconds)
        super().record(0.1)


def test_the_planner_gets_the_time_of_each_pass() -> None:
    planner = TimedPlanner()
    scheduler = make_scheduler(source=Costly(), planner=planner)
    verify = scheduler.engine.verify

    def slow_verify(items: Sequence[VerifyItem]) -> list[NodeLogits | None]:
        time.sleep(0.01)
        return verify(items)

    scheduler.engine.verify = slow_verify  # type: ignore[method-assign]
    scheduler.run([Submission(make_request([1], 10), "trie")])
    assert len(planner.seconds) == 10
    assert min(planner.seconds) >= 0.01


def test_drafting_that_takes_longer_than_it_saves_ends_and_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    cost = 0.5  # seconds
    monkeypatch.setattr(Session, "take_draft_seconds", lambda self: cost)
    source = Costly()
    planner = TimedPlanner()
    scheduler = make_scheduler(source=source, planner=planner)
    request = make_request([1], 200)
    (result,) = scheduler.run([Submission(request, "trie")])
    assert result.output_ids == plain_decode(request)
    assert source.entries.count("propose") <= 3
    assert source.entries.count("learn") <= 2 * source.entries.count("propose") + 1, "steps without drafts are one"
    assert source.texts == {}, "the whole text was learned"
    cost, source.is_right = 0.001, True
    source.entries.clear()
    for _ in range(10):
        (result,) = scheduler.run([Submission(replace(request, request_id="again"), "trie")])
        assert result.output_ids == plain_decode(request)
    assert source.entries.count("propose") > 200, "drafting is cheap now"


def test_drafts_that_come_with_a_request_are_verified_in_any_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "take_draft_seconds", lambda self: 9.0)
    planner = TimedPlanner()
    drafter = Drafter([SuppliedSource(SuppliedDraftConfig()), Costly()], VOCAB_SIZE)
    scheduler = make_scheduler(drafter=drafter, planner=planner)
    scheduler.run([Submission(make_request([1], 20), "trie")])
    names = frozenset({"supplied", "trie"})
    assert not planner.drafting_pays(names)
    request = make_request([1], 20)
    tree = chain(plain_decode(request)[:3], [0.9, 0.8, 0.7])
    scheduler.submit(Submission(request, "trie", supplied=tree), lambda event: None)
    scheduler.step()
    (running,) = scheduler._running
    assert running.session.statistics.num_accepted_tokens == 3
    scheduler.cancel(request.request_id)
    scheduler.step()


def test_a_request_at_a_huge_temperature_does_not_end_the_drafts_of_others() -> None:
    """Its noise made the weights of all requests infinite."""
    sources = [TrieDraftConfig(max_bytes=1 << 20), RecyclingDraftConfig()]
    scheduler = make_scheduler(drafter=create_drafter(sources, LookaheadConfig.of(1, 1, 0), VOCAB_SIZE))

    def num_steps(temperature: float) -> int:
        request = make_request([1, 2, 3], 100, sampling=SamplingParams(temperature=temperature, seed=5))
        (result,) = scheduler.run([Submission(request, "hybrid")])
        assert result.output_ids == plain_decode(request)
        return result.statistics.num_steps

    before = [num_steps(each) for each in (1.0, 0.0)]
    num_steps(1e38)
    after = [num_steps(each) for each in (1.0, 0.0)]
    assert np.all(np.less(after, before))
