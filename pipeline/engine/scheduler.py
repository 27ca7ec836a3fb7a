"""In-flight batching: many requests share one engine, a step at a time.

Requests join and leave between steps. One pass serves the verify steps of running sequences first and fills what is
left of `max_num_tokens` with chunks of prompts in order of admission, so neither starves the other:

    admit waiting -> plan items -> engine.verify -> per sequence: choose, accept, commit, advance -> tell requester

The scheduler is driven either by its own thread (`start`, used by the server) or by `run` (in process, used by bench
and tests); `submit` and `cancel` may be called from any thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence

from pipeline.decoding.accept import accept
from pipeline.decoding.drafter import Drafter
from pipeline.decoding.planner import PlanItem, Planner
from pipeline.decoding.request import FinishReason
from pipeline.decoding.sampling import choose_token
from pipeline.decoding.session import GenerationStatistics, StepOutcome
from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.tree import EMPTY_TREE, DraftTree
from pipeline.engine.admission import check_submission
from pipeline.engine.contract import Engine, NodeLogits, VerifyItem
from pipeline.engine.inbox import HOLD_S, Inbox
from pipeline.engine.running import Running, Starter
from pipeline.engine.submission import GenerationResult, OnEvent, StepEvent, Submission
from pipeline.errors import EngineError, RequestError

logger = logging.getLogger(__name__)


class Scheduler:
    """Shares one engine and one drafter among requests. See the module's text."""

    def __init__(
        self,
        engine: Engine,
        drafter: Drafter,
        planner: Planner,
        *,
        default_budget: DraftBudget,
        max_queue_size: int,
        prefill_chunk: int,
    ) -> None:
        self._engine = engine
        self._drafter = drafter
        self._planner = planner
        self._starter = Starter(engine, drafter, default_budget)
        self._prefill_chunk = prefill_chunk
        self._running: list[Running] = []
        self._inbox = Inbox(max_queue_size, engine.limits.max_batch_size)
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    @property
    def engine(self) -> Engine:
        return self._engine

    @property
    def drafter(self) -> Drafter:
        return self._drafter

    def submit(self, submission: Submission, on_event: OnEvent) -> None:
        """Queue a request. on_event is called from the scheduler's thread after every step of it; the last event is
        `done`. Raises RequestError if it can never be served and BusyError if the queue is full."""
        check_submission(submission, self._engine.limits)
        with self._changed:
            self._inbox.add(submission, on_event)
            self._changed.notify()

    def cancel(self, request_id: str) -> None:
        """End a waiting or running request before its next step. An unknown id is ignored: it may have just ended."""
        with self._changed:
            if request_id in self._inbox.known:
                self._inbox.cancelled.add(request_id)
                self._changed.notify()

    def run(self, submissions: Sequence[Submission]) -> list[GenerationResult]:
        """Serve requests in the calling thread until all have finished; results in the given order. Raises the first
        error of a request. Not to be mixed with `start`."""
        outputs: dict[str, list[int]] = {}
        last: dict[str, StepEvent] = {}

        def collect(event: StepEvent) -> None:
            outputs.setdefault(event.request_id, []).extend(event.token_ids)
            if event.done:
                last[event.request_id] = event

        todo = deque(submissions)
        while todo or self._has_work():
            while todo and len(self._inbox.waiting) < self._inbox.max_queue_size:
                self.submit(todo.popleft(), collect)
            self.step()
        for submission in submissions:
            error = last[submission.request.request_id].error
            if error is not None:
                raise error
        return [
            GenerationResult(
                request_id=(request_id := submission.request.request_id),
                prompt_ids=submission.request.prompt_ids.tolist(),
                output_ids=outputs[request_id],
                finish_reason=last[request_id].finish_reason,
                statistics=last[request_id].statistics,
            )
            for submission in submissions
        ]

    def start(self) -> None:
        """Serve in a thread of the scheduler's own until `close`."""
        self._thread = threading.Thread(target=self._serve, name="scheduler", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Cancel everything, tell the requesters, and end the thread."""
        with self._changed:
            self._inbox.closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def step(self) -> None:
        """One pass over the engine, or nothing if there is nothing to do."""
        self._apply_cancellations()
        self._admit()
        planned = self._plan()
        if not planned:
            return
        results = self._engine.verify([item for _, item in planned])
        for (running, item), logits in zip(planned, results, strict=True):
            if logits is None:
                continue
            try:
                self._advance(running, item.tree, logits)
            except EngineError:  # no request's fault
                raise
            except Exception as error:  # one request's fault must not end the others; the requester is told
                logger.exception("request %s failed", running.submission.request.request_id)
                self._end(running, [], error=error)

    def _serve(self) -> None:
        while True:
            with self._changed:
                # The end of a hold wakes nobody.
                self._changed.wait_for(self._is_wanted, timeout=HOLD_S if self._inbox.holds_places else None)
                if self._inbox.closed:
                    break
            try:
                self.step()
            except Exception as error:  # the pass as a whole failed: every request in it did
                logger.exception("engine step failed")
                for running in list(self._running):
                    self._end(running, [], error=error)
        with self._changed:
            self._inbox.cancelled |= self._inbox.known
        self._apply_cancellations()

    def _has_work(self) -> bool:
        return bool(self._running or self._inbox.has_waiting)

    def _is_wanted(self) -> bool:
        inbox = self._inbox
        return bool(
            self._running
            or inbox.can_take(self._engine.limits.max_batch_size, time.monotonic())
            or inbox.cancelled
            or inbox.closed
        )

    def _apply_cancellations(self) -> None:
        with self._changed:
            cancelled, dropped = self._inbox.take_cancelled()
        for entry in dropped:
            _tell(entry.on_event, _ended(entry.submission, FinishReason.CANCELLED))
        for running in list(self._running):
            if running.submission.request.request_id in cancelled:
                running.session.cancel()
                self._end(running, [])

    def _admit(self) -> None:
        while num_free := self._engine.limits.max_batch_size - len(self._running):
            with self._changed:
                entry = self._inbox.take(num_free, time.monotonic())
            if entry is None:
                return
            try:
                self._running.append(self._starter.start(entry))
            except Exception as error:  # whatever it is, the requester is told and the others go on
                if not isinstance(error, RequestError):
                    logger.exception("request %s could not begin", entry.request_id)
                with self._changed:
                    self._inbox.forget(entry.request_id)
                _tell(entry.on_event, _ended(entry.submission, None, error))

    def _plan(self) -> list[tuple[Running, VerifyItem]]:
        """Items of the next pass, within `max_num_tokens`: verify steps first, then prompt chunks, then drafts."""
        limits = self._engine.limits
        room = max_num_tokens = limits.max_num_tokens
        chosen: list[Running] = []
        items: list[PlanItem] = []
        for running in sorted(self._running, key=lambda running: not running.is_decoding(limits.max_draft_tokens)):
            num_pending = len(running.sequence.pending)
            chunk = min(num_pending, self._prefill_chunk, room)
            if chunk <= 0:
                break
            room -= chunk
            is_last = chunk == num_pending
            tree = running.session.propose() if is_last else EMPTY_TREE
            chosen.append(running)
            items.append(PlanItem(tree, chunk, running.sequence.num_cached_tokens, yields_token=is_last))
        trees = self._planner.plan(items, max_num_tokens)
        return [
            (running, VerifyItem(running.sequence, tree, item.num_pending))
            for running, item, tree in zip(chosen, items, trees, strict=True)
        ]

    def _advance(self, running: Running, tree: DraftTree, logits: NodeLogits) -> None:
        request, session = running.submission.request, running.session
        choices = logits.choices

        def choose(node: int, emitted: Sequence[int]) -> int:
            if not running.needs_logits:
                return int(choices[node + 1])
            return choose_token(request, logits.row(node + 1), session.context_with(emitted))

        accepted = accept(tree, choose)
        top_ids, top_probs = logits.top_k(running.top_k) if running.top_k else (None, None)
        self._engine.commit(running.sequence, accepted.nodes, accepted.token_ids)
        emitted = session.advance(tree, StepOutcome(accepted.nodes, accepted.token_ids, choices, top_ids, top_probs))
        running.num_steps += 1
        if session.finished or running.num_steps == running.submission.max_steps:
            self._end(running, emitted)
        else:
            _tell(running.on_event, StepEvent(request.request_id, emitted, session.statistics))

    def _end(self, running: Running, emitted: Iterable[int], error: Exception | None = None) -> None:
        request_id = running.submission.request.request_id
        session = running.session
        session.close()
        self._engine.release(running.sequence)
        self._running.remove(running)
        with self._changed:
            self._inbox.forget(request_id)
            if error is None and session.finish_reason in (None, FinishReason.LENGTH):
                hold = running.continues and running.submission.to_be_continued
                self._inbox.remember(session.context, hold, time.monotonic())
        _tell(
            running.on_event,
            StepEvent(request_id, list(emitted), session.statistics, session.finish_reason, error, done=True),
        )


def _ended(submission: Submission, reason: FinishReason | None, error: Exception | None = None) -> StepEvent:
    return StepEvent(submission.request.request_id, [], GenerationStatistics(), reason, error, done=True)


def _tell(on_event: OnEvent, event: StepEvent) -> None:
    """Hand an event over; a requester that cannot take it must not stop the others."""
    try:
        on_event(event)
    except Exception:
        logger.exception("the requester of %s could not take an event", event.request_id)
