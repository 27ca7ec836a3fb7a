"""Queue of the scheduler: requests that wait for a slot of the engine, and ids to cancel.

The order is first in, first out, except that continuations go first. The prompt of a continuation consists of the
prompt and the output of a recently ended request: each step of the BLS model is one. A request is continued at most
once, so new requests wait only for running ones. A request whose guide is being compiled does not block others.

The slot of a continued request is free between two steps, and a new request could take it with the KV cache. So from
the second step on the slot is reserved for HOLD_S, if the request announces further steps.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pipeline.decoding.tree import IntArray
from pipeline.engine.submission import OnEvent, Submission
from pipeline.errors import BusyError, RequestError

if TYPE_CHECKING:
    from pipeline.decoding.grammar.matcher import Matcher

# Time limit of holding a slot for the next step of a stream. The BLS model usually calls again within milliseconds, but
# later during a burst of requests.
HOLD_S = 0.2
# Number of ended requests that can be continued; a continuation of an older one waits like a new request.
_NUM_REMEMBERED = 4096


@dataclass(frozen=True, slots=True, eq=False)
class WaitingRequest:
    """A request without a slot. continues: whether it is a continuation. matcher: future of its guide's matcher; None
    without a guide."""

    submission: Submission
    on_event: OnEvent
    continues: bool
    matcher: Future[Matcher] | None = None

    @property
    def request_id(self) -> str:
        return self.submission.request.request_id

    @property
    def is_ready(self) -> bool:
        """Whether the request waits only for a slot. True if its guide was refused, because it then fails at its
        start."""
        return self.matcher is None or self.matcher.done()


@dataclass(slots=True)
class WaitingQueue:
    """Not thread safe. known: ids of all unfinished requests, waiting or running. now: seconds of a monotonic clock."""

    max_queue_size: int
    num_slots: int
    waiting: deque[WaitingRequest] = field(default_factory=deque)
    continuing: deque[WaitingRequest] = field(default_factory=deque)
    cancelled: set[str] = field(default_factory=set)
    known: set[str] = field(default_factory=set)
    closed: bool = False
    # Keys are hashes of prompt and output. _ended: number of ended requests. _held: held slots with their deadlines.
    _ended: OrderedDict[int, int] = field(default_factory=OrderedDict)
    _held: deque[tuple[int, float]] = field(default_factory=deque)

    @property
    def holds_slots(self) -> bool:
        return bool(self._held)

    def add(
        self,
        submission: Submission,
        on_event: OnEvent,
        compile_guide: Callable[[], Future[Matcher] | None] = lambda: None,
    ) -> WaitingRequest:
        """Queue a request. Raises RequestError if its id is in use and BusyError if the queue is full. compile_guide:
        starts to compile the request's guide; not called for a request that is refused."""
        request = submission.request
        if self.closed:
            raise BusyError("the engine is shutting down; send the request to another server")
        if request.request_id in self.known:
            raise RequestError(f"request id {request.request_id!r} is in use by an unfinished request; choose another")
        key = _key(request.prompt_ids)
        continues = self._ended.get(key, 0) > 0
        # Requests with a free slot do not count as waiting, though they are queued until the next pass. New requests
        # and continuations have separate limits.
        if len(self.continuing if continues else self.known) >= self.max_queue_size + self.num_slots:
            raise BusyError(f"busy: {self.max_queue_size} requests are waiting already; send the request again later")
        entry = WaitingRequest(submission, on_event, continues, compile_guide())
        if continues:
            self._continue(key)
        (self.continuing if continues else self.waiting).append(entry)
        self.known.add(request.request_id)
        return entry

    def can_take(self, num_free: int, now: float) -> bool:
        """Whether a waiting request may take one of the free slots."""
        return self._next(num_free, now) is not None

    def take(self, num_free: int, now: float) -> WaitingRequest | None:
        """Remove and return the request that gets a free slot next, if any."""
        entry = self._next(num_free, now)
        if entry is not None:
            (self.continuing if entry.continues else self.waiting).remove(entry)
        return entry

    def _next(self, num_free: int, now: float) -> WaitingRequest | None:
        """The first ready continuation, else the first ready new request for which a slot is free and not held."""
        while self._held and self._held[0][1] <= now:
            self._held.popleft()
        if num_free <= 0:
            return None
        entry = next((entry for entry in self.continuing if entry.is_ready), None)
        if entry is None and num_free > len(self._held):
            entry = next((entry for entry in self.waiting if entry.is_ready), None)
        return entry

    def take_cancelled(self) -> tuple[set[str], list[WaitingRequest]]:
        """Return the ids cancelled since the last call, and the waiting requests among them, which leave the queue."""
        if not self.cancelled:
            return set(), []
        cancelled, self.cancelled = self.cancelled, set()
        dropped = [entry for entry in (*self.continuing, *self.waiting) if entry.request_id in cancelled]
        self.continuing = deque(entry for entry in self.continuing if entry not in dropped)
        self.waiting = deque(entry for entry in self.waiting if entry not in dropped)
        for entry in dropped:
            self.forget(entry.request_id)
        return cancelled, dropped

    def forget(self, request_id: str) -> None:
        """Free the id of a finished request, and drop a late cancellation, which must not affect the id's next use."""
        self.known.discard(request_id)
        self.cancelled.discard(request_id)

    def remember(self, token_ids: IntArray, hold: bool, now: float) -> None:
        """Record an ended request that may be continued. token_ids: prompt and output. hold: hold its slot."""
        key = _key(token_ids)
        self._ended[key] = min(self._ended.pop(key, 0) + 1, self.num_slots)
        if len(self._ended) > _NUM_REMEMBERED:
            self._ended.popitem(last=False)
        if hold:
            self._held.append((key, now + HOLD_S))

    def _continue(self, key: int) -> None:
        self._ended[key] -= 1
        if not self._ended[key]:
            del self._ended[key]
        held = next((entry for entry in self._held if entry[0] == key), None)
        if held is not None:
            self._held.remove(held)


def _key(token_ids: IntArray) -> int:
    return hash(token_ids.tobytes())
