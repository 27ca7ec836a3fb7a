"""In-flight batching: many requests share one engine, step by step.

Requests join and leave between steps. A pass takes the verify steps of running sequences first, and fills the rest of
`max_num_tokens` with chunks of prompts, so neither starves the other:

    admit waiting -> plan items -> engine.verify -> per sequence: choose, accept, commit -> notify requester -> learn

Guides are compiled in worker threads while their requests wait. Masks are computed during the engine's pass.

Either the scheduler's own thread drives it (`start`, in the server), or `run` does (in process, in bench and tests).
`submit` and `cancel` may be called from any thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from pipeline.decoding.drafting.drafter import Drafter
from pipeline.decoding.grammar.compiler import Compiler
from pipeline.decoding.grammar.masks import TreeMasks
from pipeline.decoding.planning.planner import PlanItem, Planner
from pipeline.decoding.request import FinishReason
from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.tree import EMPTY_TREE
from pipeline.engine.admission import check_submission, matcher_of
from pipeline.engine.contract import Engine, NodeLogits, VerifyItem
from pipeline.engine.running_request import RunningRequest, by_urgency, start_request
from pipeline.engine.step import advance, start_masks
from pipeline.engine.submission import GenerationResult, OnEvent, StepEvent, Submission, ended_waiting, notify
from pipeline.engine.waiting_queue import HOLD_S, WaitingQueue
from pipeline.errors import EngineError, RequestError

logger = logging.getLogger(__name__)


class Scheduler:
    """Shares one engine and one drafter among requests."""

    def __init__(
        self,
        engine: Engine,
        drafter: Drafter,
        planner: Planner,
        *,
        default_budget: DraftBudget,
        max_queue_size: int,
        prefill_chunk: int,
        compiler: Compiler | None = None,
    ) -> None:
        """compiler: compiles the guides of requests; without it, requests with a guide are refused."""
        self._compiler = compiler
        self.engine = engine
        self.drafter = drafter
        self._planner = planner
        self._default_budget = default_budget
        self._prefill_chunk = prefill_chunk
        self._running: list[RunningRequest] = []
        # Calls that learn from a pass or close sessions. They run after the tokens of the pass are sent.
        self._deferred: list[Callable[[], None]] = []
        self._queue = WaitingQueue(max_queue_size, engine.limits.max_batch_size)
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        # Start of the last pass, in seconds of time.perf_counter, for receivers of its events.
        self.pass_started = 0.0
        # An object per step while it runs, for `PassWatch`.
        self.running_step: object | None = None

    def submit(self, submission: Submission, on_event: OnEvent) -> None:
        """Queue a request. The scheduler's thread calls on_event after every step of it; the last event is `done`.
        Raises RequestError if the request can never be served, BusyError if the queue is full."""
        check_submission(submission, self.engine.limits)
        with self._changed:
            entry = self._queue.add(submission, on_event, partial(matcher_of, submission, self._compiler))
            self._changed.notify()
        if entry.matcher is not None:
            entry.matcher.add_done_callback(lambda _: self._wake())

    def cancel(self, request_id: str) -> None:
        """End a waiting or running request before its next step. Ignores an unknown id, which may have just ended."""
        with self._changed:
            if request_id in self._queue.known:
                self._queue.cancelled.add(request_id)
                self._changed.notify()

    def run(self, submissions: Sequence[Submission], max_open: int | None = None) -> list[GenerationResult]:
        """Serve requests in the calling thread until all have finished. Returns results in the given order. Raises the
        error of the first request that has one. Do not combine with `start`. max_open: limit of requests in flight, by
        default that of the queue."""
        max_open = max_open or self._queue.max_queue_size + self.engine.limits.max_batch_size
        results = [GenerationResult() for _ in submissions]
        todo = deque(zip(submissions, results, strict=True))
        while todo or self._queue.known:
            while todo and len(self._queue.known) < max_open:
                submission, result = todo.popleft()
                self.submit(submission, result.take)
            self._wait_for_work()
            self.step()
        for result in results:
            if result.error is not None:
                raise result.error
        return results

    def start(self) -> None:
        """Start a thread that serves requests until `close`."""
        if self._compiler is not None:
            self._compiler.preload()
        self._thread = threading.Thread(target=self._serve, name="scheduler", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Cancel all requests, send their last events, and end the thread."""
        with self._changed:
            self._queue.closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._compiler is not None:
            self._compiler.close()

    def step(self) -> None:
        """Run one pass over the engine, if a request needs one."""
        self.running_step = object()
        try:
            self._pass()
        finally:
            self._learn()
            self.running_step = None

    def _pass(self) -> None:
        self._apply_cancellations()
        self._admit()
        planned = self._plan()
        if not planned:
            return
        masks = [start_masks(running, item) for running, item in planned]
        self.pass_started = time.perf_counter()
        try:
            results = self.engine.verify([item for _, item in planned])
            self._planner.record(time.perf_counter() - self.pass_started)
        finally:
            for tree_masks in masks:
                if tree_masks is not None:
                    tree_masks.finish()
        for (running, item), tree_masks, logits in zip(planned, masks, results, strict=True):
            if logits is None:
                continue
            with self._ending_on_error(running):
                self._advance(running, item, tree_masks, logits)

    @contextmanager
    def _ending_on_error(self, running: RunningRequest) -> Iterator[None]:
        """End a request whose part of a step fails; its requester gets the error. An EngineError affects all requests,
        so it is raised."""
        try:
            yield
        except EngineError:
            raise
        except Exception as error:
            if not isinstance(error, RequestError):
                logger.exception("request %s failed", running.request.request_id)
            self._end(running, running.last_event(error))

    def _serve(self) -> None:
        while True:
            self._wait_for_work()
            if self._queue.closed:
                break
            try:
                self.step()
            except Exception as error:  # the pass failed, and with it every running request
                logger.exception("engine step failed")
                for running in list(self._running):
                    self._end(running, running.last_event(error))
                self._learn()
        with self._changed:
            self._queue.cancelled |= self._queue.known
        self._apply_cancellations()
        self._learn()

    def _wait_for_work(self) -> None:
        with self._changed:
            # The end of a hold sends no notification, so the wait has a timeout.
            self._changed.wait_for(self._has_work, timeout=HOLD_S if self._queue.holds_slots else None)

    def _has_work(self) -> bool:
        """Whether the next step does something, or the loop ends."""
        queue = self._queue
        return bool(
            self._running
            or queue.can_take(self.engine.limits.max_batch_size, time.monotonic())
            or queue.cancelled
            or queue.closed
        )

    def _apply_cancellations(self) -> None:
        with self._changed:
            cancelled, dropped = self._queue.take_cancelled()
        for entry in dropped:
            notify(entry.on_event, ended_waiting(entry.submission, FinishReason.CANCELLED))
        for running in list(self._running):
            if running.request.request_id in cancelled:
                running.session.cancel()
                self._end(running, running.last_event())

    def _admit(self) -> None:
        while num_free := self.engine.limits.max_batch_size - len(self._running):
            with self._changed:
                entry = self._queue.take(num_free, time.monotonic())
            if entry is None:
                return
            try:
                self._running.append(start_request(entry, self.engine, self.drafter, self._default_budget))
            except Exception as error:  # the requester gets the error, the others continue
                if not isinstance(error, RequestError):
                    logger.exception("request %s could not begin", entry.request_id)
                with self._changed:
                    self._queue.forget(entry.request_id)
                notify(entry.on_event, ended_waiting(entry.submission, None, error))

    def _plan(self) -> list[tuple[RunningRequest, VerifyItem]]:
        """Items of the next pass, within `max_num_tokens`: pending tokens of decoding sequences first, then prompt
        chunks, then drafts."""
        limits = self.engine.limits
        room = max_num_tokens = limits.max_num_tokens
        chosen: list[RunningRequest] = []
        items: list[PlanItem] = []
        for running in by_urgency(self._running, limits.max_draft_tokens):
            num_pending = running.sequence.num_pending
            chunk = min(num_pending, self._prefill_chunk, room)
            if chunk <= 0:
                break
            with self._ending_on_error(running):
                items.append(self._item(running, chunk, is_last=chunk == num_pending))
                chosen.append(running)
                room -= chunk
        trees = self._planner.plan(items, max_num_tokens)
        return [
            (running, VerifyItem(running.sequence, tree, item.num_pending, running.wants_prompt_rows, running.num_top))
            for running, item, tree in zip(chosen, items, trees, strict=True)
        ]

    def _item(self, running: RunningRequest, num_pending: int, is_last: bool) -> PlanItem:
        """The drafts of a sequence, if it yields a token and drafting pays."""
        # Drafts that came with the request are verified in any case.
        names = frozenset() if running.has_supplied or not is_last else running.names
        running.drafts = is_last and (not names or self._planner.drafting_pays(names))
        tree = running.session.propose(self._planner.least_probability) if running.drafts else EMPTY_TREE
        seconds = running.session.take_draft_seconds() if running.drafts else None
        cached = running.sequence.num_cached_tokens
        return PlanItem(tree, num_pending, cached, is_last, names, seconds if names else None)

    def _advance(self, running: RunningRequest, item: VerifyItem, masks: TreeMasks | None, logits: NodeLogits) -> None:
        if running.wants_prompt_rows:
            running.prompt.add(logits.pending(), running.request.prompt_ids, running.submission.wanted)
        if running.sequence.num_pending:  # more of a prompt, whose rows are requested
            return
        event = advance(self.engine, running, item.tree, logits, masks)
        if running.session.finished or running.num_steps == running.submission.max_steps:
            self._end(running, event)
        else:
            notify(running.on_event, event)
            if running.drafts:
                self._deferred.append(running.session.learn)

    def _learn(self) -> None:
        deferred, self._deferred = self._deferred, []
        for call in deferred:
            try:
                call()
            except Exception:  # noqa: PERF203  # it costs speed only, and tokens of the step are already sent
                logger.exception("the draft sources could not learn from a step")

    def _end(self, running: RunningRequest, event: StepEvent) -> None:
        """Free the request's slot and send its last event. event: result of the last step, or the error."""
        session, request = running.session, running.request
        self._deferred.append(session.close)
        self.engine.release(running.sequence)
        self._running.remove(running)
        with self._changed:
            self._queue.forget(request.request_id)
            if event.error is None and session.finish_reason in (None, FinishReason.LENGTH):
                ended = session.finish_reason is not None and running.submission.max_steps is not None
                hold = running.continues and running.submission.to_be_continued and not ended
                self._queue.remember(session.context, hold, time.monotonic())
                if self._compiler is not None and session.matcher is not None and request.guide is not None:
                    self._compiler.keep(request.guide, session.matcher)
        notify(running.on_event, replace(event, finish_reason=session.finish_reason, done=True))

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify()
