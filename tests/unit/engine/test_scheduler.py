import threading
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.decoding.drafter import Drafter
from pipeline.decoding.planner import FixedPlanner
from pipeline.decoding.request import FinishReason, GenerationRequest, SamplingParams, StepResult
from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.tree import DraftTree, IntArray, chain, tree_from_lists
from pipeline.engine.contract import EngineLimits
from pipeline.engine.scheduler import Scheduler
from pipeline.engine.submission import StepEvent, Submission
from pipeline.errors import BusyError, RequestError
from tests.fakes import VOCAB_SIZE, HostileSource, TableEngine, make_request, plain_decode, table_logits


def make_scheduler(
    *, limits: EngineLimits | None = None, source: HostileSource | None = None, max_queue_size: int = 64
) -> Scheduler:
    engine = TableEngine() if limits is None else TableEngine(limits)
    return Scheduler(
        engine,
        Drafter([source or HostileSource()], VOCAB_SIZE),
        FixedPlanner(),
        default_budget=DraftBudget(10, 6),
        max_queue_size=max_queue_size,
        prefill_chunk=16,
    )


def expected(request: GenerationRequest) -> list[int]:
    return plain_decode(request)


sampling_params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    top_k=st.sampled_from([0, 4]),
    top_p=st.sampled_from([1.0, 0.8]),
    min_p=st.sampled_from([0.0, 0.05]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.5]),
    frequency_penalty=st.sampled_from([0.0, 0.3]),
    prompt_ignore_length=st.sampled_from([0, 2]),
    bad_words=st.sampled_from([(), ((5,), (1, 2))]),
    seed=st.integers(0, 3),
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=40),
            st.integers(1, 30),
            sampling_params,
            st.sampled_from(["none", "trie", "hybrid", "auto"]),
        ),
        min_size=1,
        max_size=8,
    ),
    st.integers(0, 100),
)
def test_mixed_batches_with_hostile_drafts_emit_exactly_the_targets_tokens(
    entries: list[tuple[list[int], int, SamplingParams, str]], seed: int
) -> None:
    scheduler = make_scheduler(source=HostileSource(seed))
    submissions = [
        Submission(
            make_request(
                prompt, length, sampling=sampling, end_ids=frozenset({0}), stop_sequences=((3, 4),), min_new_tokens=1
            ),
            strategy,
        )
        for prompt, length, sampling, strategy in entries
    ]
    results = scheduler.run(submissions)
    assert [result.output_ids for result in results] == [expected(entry.request) for entry in submissions]
    assert scheduler.engine.held == []  # type: ignore[attr-defined]


def test_drafts_save_steps_and_every_token_is_counted_once() -> None:
    request = make_request(max_new_tokens=40)
    (plain,) = make_scheduler().run([Submission(request, "none")])
    (drafted,) = make_scheduler(source=HostileSource(broken=0.0)).run([Submission(request, "trie")])
    assert drafted.output_ids == plain.output_ids
    assert plain.statistics.num_steps == len(plain.output_ids) == 40
    assert drafted.statistics.num_steps < plain.statistics.num_steps
    assert sum(drafted.statistics.acceptance_lengths) == 40
    assert drafted.statistics.mean_acceptance_length == 40 / drafted.statistics.num_steps


def test_a_supplied_tree_is_verified_in_one_step() -> None:
    from pipeline.config.schema import SuppliedDraftConfig
    from pipeline.decoding.sources.supplied import SuppliedSource

    request = make_request(max_new_tokens=4)
    target = plain_decode(request)
    scheduler = Scheduler(
        TableEngine(),
        Drafter([SuppliedSource(SuppliedDraftConfig())], VOCAB_SIZE),
        FixedPlanner(),
        default_budget=DraftBudget(10, 10),
        max_queue_size=4,
        prefill_chunk=16,
    )
    wrong = (target[0] + 1) % VOCAB_SIZE
    tree = tree_from_lists([wrong, target[0], target[1]], [-1, -1, 1])
    (result,) = scheduler.run([Submission(request, "trie", supplied=tree, max_steps=1)])
    assert result.output_ids == target[:3]
    assert result.finish_reason is None
    assert result.statistics.num_accepted_tokens == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda: Submission(make_request(prompt=[])), "prompt is empty"),
        (lambda: Submission(make_request(max_new_tokens=0)), "at least 1"),
        (lambda: Submission(make_request(max_new_tokens=-5)), "at least 1"),
        (lambda: Submission(make_request(prompt=[1] * 256)), "256 tokens"),
        (lambda: Submission(make_request(min_new_tokens=50)), "min_tokens"),
        (lambda: Submission(make_request(), "fast"), "one of none, lookahead"),
        (lambda: Submission(make_request(), supplied=chain([1] * 65)), "65 draft tokens"),
        (lambda: Submission(make_request(), supplied=chain([99])), "token 99"),
        (
            lambda: Submission(make_request(), supplied=DraftTree(np.zeros(2, np.int32), np.asarray([1, 0], np.int32))),
            "parent",
        ),
        (
            lambda: Submission(make_request(), prediction=np.asarray([1, 2, 24, 3], np.int32)),
            "the prediction has token 24 at position 2; the vocabulary is 0 .. 23",
        ),
        (lambda: Submission(make_request(), prediction=np.asarray([-1], np.int32)), "has token -1 at position 0"),
        (lambda: Submission(make_request(sampling=SamplingParams(temperature=-1))), "temperature"),
        (lambda: Submission(make_request(sampling=SamplingParams(temperature=np.inf))), "temperature is inf"),
        (lambda: Submission(make_request(sampling=SamplingParams(bad_words=((),)))), "word without tokens"),
        (
            lambda: Submission(
                make_request(sampling=SamplingParams(embedding_bias=np.full(VOCAB_SIZE, np.nan, np.float32)))
            ),
            "embedding_bias of token 0 is nan",
        ),
    ],
)
def test_a_bad_request_is_refused_with_a_sentence_and_harms_nobody(
    change: Callable[[], Submission], message: str
) -> None:
    scheduler = make_scheduler()
    with pytest.raises(RequestError, match=message):
        scheduler.submit(change(), lambda event: None)
    good = make_request()
    (result,) = scheduler.run([Submission(good)])
    assert result.output_ids == plain_decode(good)


class Scribbler(HostileSource):
    """Writes into everything that it is given in one of the calls."""

    def __init__(self, where: str) -> None:
        super().__init__(broken=0.0)
        self._where = where

    def start(self, request_id: str, prompt_ids: IntArray, namespace: str) -> None:
        if self._where == "start":
            prompt_ids[:] = 7

    def propose(self, request_id: str, context: IntArray, budget: DraftBudget) -> DraftTree:
        tree = super().propose(request_id, context, budget)
        if self._where == "propose":
            context.sort()
        return tree

    def update(self, request_id: str, step: StepResult, nodes: IntArray) -> None:
        if self._where == "lists":
            step.token_ids.clear()
            step.nodes.append(3)
        if self._where == "update":
            step.context[:] = 0


@pytest.mark.parametrize("where", ["start", "propose", "update", "lists"])
def test_a_source_that_writes_into_what_it_is_given_changes_no_token(where: str) -> None:
    scheduler = make_scheduler(source=Scribbler(where))
    sampling = SamplingParams(temperature=0.7, seed=3, repetition_penalty=2.0, bad_words=((5, 6),))
    request = make_request((1, 2, 3), 30, sampling=sampling, stop_sequences=((1, 1),))
    (result,) = scheduler.run([Submission(request, "trie")])
    assert result.output_ids == plain_decode(request)
    assert bool(scheduler.drafter.failures["trie"]) is (where != "lists")


def test_a_full_queue_answers_busy() -> None:
    """Whoever finds a place does not wait: three may, beside those for whom the engine has room."""
    scheduler = make_scheduler(limits=EngineLimits(2, 256, 128, 64, VOCAB_SIZE), max_queue_size=3)
    for _ in range(2 + 3):
        scheduler.submit(Submission(make_request()), lambda event: None)
    for _ in range(2):  # before the first pass, and when two run
        with pytest.raises(BusyError, match="3 requests are waiting"):
            scheduler.submit(Submission(make_request()), lambda event: None)
        scheduler.step()


def stream_steps(scheduler: Scheduler, count: int, output: list[int]) -> None:
    """Steps of one stream as the BLS model makes them: each a request that goes on with the one before."""
    for _ in range(count):
        step = Submission(make_request([1, 2, 3, *output], 1), "none", to_be_continued=True)
        scheduler.submit(step, lambda event: output.extend(event.token_ids))
        length = len(output)
        while len(output) == length:
            scheduler.step()


def test_a_stream_of_steps_is_not_refused_for_new_requests_and_waits_for_none_of_them() -> None:
    """The one place is the stream's between its steps, too, while as many new requests wait as may."""
    scheduler = make_scheduler(limits=EngineLimits(1, 256, 128, 64, VOCAB_SIZE), max_queue_size=2)
    output: list[int] = []
    new: list[StepEvent] = []
    stream_steps(scheduler, 2, output)
    for _ in range(3):
        scheduler.submit(Submission(make_request(max_new_tokens=100), "none"), new.append)
    stream_steps(scheduler, 18, output)
    assert output == plain_decode(make_request(max_new_tokens=20))
    assert not new


def test_new_requests_run_when_a_stream_of_steps_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("pipeline.engine.scheduler.time.monotonic", lambda: now)
    scheduler = make_scheduler(limits=EngineLimits(1, 256, 128, 64, VOCAB_SIZE))
    stream_steps(scheduler, 3, [])
    new: list[StepEvent] = []
    scheduler.submit(Submission(make_request(max_new_tokens=2), "none"), new.append)
    scheduler.step()
    assert not new  # the place is held for the next step, which does not come
    now += 1.0
    scheduler.step()
    assert len(new) == 1


def test_no_place_is_held_for_a_stream_that_has_said_that_it_ends() -> None:
    scheduler = make_scheduler(limits=EngineLimits(1, 256, 128, 64, VOCAB_SIZE))
    output: list[int] = []
    new: list[StepEvent] = []
    stream_steps(scheduler, 3, output)
    scheduler.submit(Submission(make_request([1, 2, 3, *output], 1), "none"), lambda event: None)
    scheduler.submit(Submission(make_request(), "none"), new.append)
    scheduler.step()
    scheduler.step()
    assert len(new) == 1


def test_a_hold_ends_by_itself_in_the_schedulers_thread() -> None:
    scheduler = make_scheduler(limits=EngineLimits(1, 256, 128, 64, VOCAB_SIZE))
    prompt, output = [1, 2, 3], []
    done = threading.Semaphore(0)

    def on_event(event: StepEvent) -> None:
        output.extend(event.token_ids)
        done.release()

    scheduler.start()
    try:
        for _ in range(3):
            scheduler.submit(Submission(make_request(prompt + output, 1), "none", to_be_continued=True), on_event)
            assert done.acquire(timeout=10)
        scheduler.submit(Submission(make_request([5], 1), "none"), lambda event: done.release())
        assert done.acquire(timeout=10)
    finally:
        scheduler.close()


def test_an_ended_request_is_continued_once() -> None:
    """Else whoever sends one prompt again and again would always go first."""
    scheduler = make_scheduler(limits=EngineLimits(1, 256, 128, 64, VOCAB_SIZE))
    output = [*plain_decode(make_request(max_new_tokens=1))]
    scheduler.run([Submission(make_request(max_new_tokens=1), "none")])
    order: list[str] = []
    first, continuation, again = make_request(), make_request([1, 2, 3, *output]), make_request([1, 2, 3, *output])
    for request in (first, continuation, again):
        scheduler.submit(
            Submission(request, "none"), lambda event: order.append(event.request_id) if event.done else None
        )
    while len(order) < 3:
        scheduler.step()
    assert order == [continuation.request_id, first.request_id, again.request_id]


def test_two_requests_with_one_id_are_refused() -> None:
    scheduler = make_scheduler()
    submission = Submission(make_request())
    scheduler.submit(submission, lambda event: None)
    with pytest.raises(RequestError, match="in use"):
        scheduler.submit(submission, lambda event: None)


def test_cancelling_ends_waiting_and_running_requests_and_frees_their_places() -> None:
    scheduler = make_scheduler(limits=EngineLimits(1, 256, 128, 64, VOCAB_SIZE))
    events: dict[str, list[StepEvent]] = {}

    def on_event(event: StepEvent) -> None:
        events.setdefault(event.request_id, []).append(event)

    running, waiting, last = (make_request(max_new_tokens=100) for _ in range(3))
    for request in (running, waiting, last):
        scheduler.submit(Submission(request, "none"), on_event)
    scheduler.step()
    scheduler.cancel(waiting.request_id)
    scheduler.cancel(running.request_id)
    scheduler.cancel("never heard of")
    scheduler.step()
    for request in (running, waiting):
        assert events[request.request_id][-1].done
        assert events[request.request_id][-1].finish_reason is FinishReason.CANCELLED
    while not events.get(last.request_id, [StepEvent("", [], None)])[-1].done:  # type: ignore[arg-type]
        scheduler.step()
    assert [token for event in events[last.request_id] for token in event.token_ids] == plain_decode(last)


def test_a_failing_pass_ends_the_requests_in_it_with_the_error_and_the_server_lives() -> None:
    engine = TableEngine()
    scheduler = Scheduler(
        engine,
        Drafter([HostileSource()], VOCAB_SIZE),
        FixedPlanner(),
        default_budget=DraftBudget(4, 4),
        max_queue_size=8,
        prefill_chunk=16,
    )
    verify, failures = engine.verify, iter([True])

    def fails_once(items: object) -> object:
        if next(failures, False):
            raise MemoryError("no memory for this pass")
        return verify(items)  # type: ignore[arg-type]

    engine.verify = fails_once  # type: ignore[method-assign, assignment]
    done: dict[str, StepEvent] = {}
    finished = threading.Event()

    def on_event(event: StepEvent) -> None:
        if event.done:
            done[event.request_id] = event
            finished.set()

    scheduler.start()
    try:
        first, second = make_request(), make_request()
        scheduler.submit(Submission(first), on_event)
        assert finished.wait(10)
        finished.clear()
        scheduler.submit(Submission(second), on_event)
        assert finished.wait(10)
    finally:
        scheduler.close()
    assert isinstance(done[first.request_id].error, MemoryError)
    assert done[second.request_id].finish_reason is FinishReason.LENGTH
    assert engine.held == []


def test_a_request_that_cannot_begin_is_told_whatever_the_reason_and_its_id_is_free_again() -> None:
    scheduler = make_scheduler()
    engine, request = scheduler.engine, make_request(max_new_tokens=2)
    open_sequence, failures = engine.open, iter([True])

    def fails_once(token_ids: IntArray) -> object:
        if next(failures, False):
            raise MemoryError("no memory for this request")
        return open_sequence(token_ids)

    engine.open = fails_once  # type: ignore[method-assign, assignment]
    events: list[StepEvent] = []
    scheduler.submit(Submission(request), events.append)
    scheduler.step()
    assert [type(event.error) for event in events if event.done] == [MemoryError]
    (result,) = scheduler.run([Submission(request)])
    assert result.output_ids == plain_decode(request)


def test_a_draft_source_that_fails_at_the_start_leaves_the_place_free(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = make_scheduler()

    def fails(request_id: str) -> int:
        raise ValueError("what a source may raise")

    monkeypatch.setattr(scheduler.drafter, "needs_top_k", fails)
    events: list[StepEvent] = []
    scheduler.submit(Submission(make_request()), events.append)
    scheduler.step()
    assert isinstance(events[-1].error, ValueError)
    assert scheduler.engine.held == []  # type: ignore[attr-defined]


def test_a_cancellation_that_comes_too_late_does_not_meet_the_next_request_of_that_id() -> None:
    scheduler = make_scheduler()
    engine, request = scheduler.engine, make_request(max_new_tokens=1)
    verify = engine.verify

    def cancelled_meanwhile(items: object) -> object:
        scheduler.cancel(request.request_id)
        return verify(items)  # type: ignore[arg-type]

    engine.verify = cancelled_meanwhile  # type: ignore[method-assign, assignment]
    (first,) = scheduler.run([Submission(request)])
    engine.verify = verify  # type: ignore[method-assign]
    (second,) = scheduler.run([Submission(request)])
    assert first.finish_reason is second.finish_reason is FinishReason.LENGTH


def test_closing_tells_unfinished_requests() -> None:
    scheduler = make_scheduler()
    ended = threading.Event()
    scheduler.start()
    scheduler.submit(Submission(make_request(max_new_tokens=200)), lambda event: ended.set() if event.done else None)
    scheduler.close()
    assert ended.wait(10)
    with pytest.raises(BusyError, match="shutting down"):
        scheduler.submit(Submission(make_request()), lambda event: None)


def test_the_context_limit_ends_a_request() -> None:
    request = make_request(prompt=[1] * 250, max_new_tokens=100)
    (result,) = make_scheduler().run([Submission(request, "trie")])
    assert len(result.output_ids) == 6
    assert result.finish_reason is FinishReason.LENGTH
    assert result.output_ids == plain_decode(request)


def test_long_prompts_do_not_hold_up_running_requests() -> None:
    """While a prompt of 100 tokens is computed in chunks of 16, a running request gets a token every pass."""
    scheduler = make_scheduler()
    tokens: list[int] = []
    scheduler.submit(Submission(make_request(max_new_tokens=50), "none"), lambda event: tokens.extend(event.token_ids))
    scheduler.step()
    scheduler.submit(Submission(make_request(prompt=[2] * 100), "none"), lambda event: None)
    for step in range(6):
        scheduler.step()
        assert len(tokens) == step + 2


def test_short_prompts_do_not_hold_up_a_long_one() -> None:
    """Passes of 16 tokens and never fewer than three short prompts behind a long one: it is computed first."""
    scheduler = make_scheduler(limits=EngineLimits(4, 256, 16, 0, VOCAB_SIZE))
    ended: list[str] = []

    def submit(request: GenerationRequest) -> None:
        scheduler.submit(
            Submission(request, "none"), lambda event: ended.append(event.request_id) if event.done else None
        )

    long = make_request([1] * 200, 1)
    submit(long)
    for _ in range(13):
        submit(make_request([2] * 16, 1))
        scheduler.step()
    assert ended == [long.request_id]


def test_lookup_table_is_deterministic() -> None:
    np.testing.assert_array_equal(table_logits([1, 2, 3]), table_logits([9, 1, 2, 3]))
