"""What other threads ask of the scheduler: which requests wait for a place in the engine, are refused, are cancelled.

Requests wait in order of arrival, except continuations: a request whose prompt is exactly the prompt and the output of
one that has ended lately goes on with it, as each step of the BLS model does. It goes first, since its stream is under
way. Continuations cannot jump the initial queue, and each ended request is continued once, so new requests wait no
longer than for requests that run. A request whose guide is being compiled waits without holding up those behind it.

Between two steps the place of such a stream is free. From its second step on, and if it says that there are more, it
is held for a moment, else a new request would take it, and with it the stream's KV cache, for as long as that runs.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pipeline.decoding.tree import IntArray
from pipeline.engine.submission import OnEvent, Submission
from pipeline.errors import BusyError, RequestError

if TYPE_CHECKING:
    from pipeline.decoding.grammar.matcher import Matcher

# How long a place is held for the next step of a stream. The BLS model takes milliseconds to draft and call again, and
# more when a burst of requests comes in.
HOLD_S = 0.2
# Ended requests that are remembered; who goes on later than so many others have ended waits like a new request.
_NUM_REMEMBERED = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """A request without a place. continues: goes on with one that has ended. matcher: of its guide, which is compiled
    while it waits; None without a guide."""

    submission: Submission
    on_event: OnEvent
    continues: bool
    matcher: Future[Matcher] | None = None

    @property
    def request_id(self) -> str:
        return self.submission.request.request_id

    @property
    def is_ready(self) -> bool:
        """Whether nothing but a place is missing. One whose guide was refused is ready too: to hear of it."""
        return self.matcher is None or self.matcher.done()


@dataclass(slots=True)
class Inbox:
    """Not thread safe. known: ids of all unfinished requests, waiting or running. now: seconds of a clock that only
    goes forward."""

    max_queue_size: int
    num_places: int
    waiting: deque[Waiting] = field(default_factory=deque)
    continuing: deque[Waiting] = field(default_factory=deque)
    cancelled: set[str] = field(default_factory=set)
    known: set[str] = field(default_factory=set)
    closed: bool = False
    # By their tokens: how many ended requests may be continued, and for whom a place is held until when, oldest first.
    _ended: OrderedDict[int, int] = field(default_factory=OrderedDict)
    _held: deque[tuple[int, float]] = field(default_factory=deque)

    @property
    def has_waiting(self) -> bool:
        return bool(self.waiting or self.continuing)

    @property
    def holds_places(self) -> bool:
        return bool(self._held)

    def add(self, submission: Submission, on_event: OnEvent, matcher: Future[Matcher] | None = None) -> None:
        """Queue a request. Raises RequestError if its id is in use and BusyError if there are too many."""
        request = submission.request
        if self.closed:
            raise BusyError("the engine is shutting down; send the request to another server")
        if request.request_id in self.known:
            raise RequestError(f"request id {request.request_id!r} is in use by an unfinished request; choose another")
        key = _key(request.prompt_ids)
        continues = self._ended.get(key, 0) > 0
        # Requests for which there is a place do not count as waiting, though they do until the next pass. Neither do
        # new requests keep out those that go on.
        if len(self.continuing if continues else self.known) >= self.max_queue_size + self.num_places:
            raise BusyError(f"busy: {self.max_queue_size} requests are waiting already; send the request again later")
        if continues:
            self._continue(key)
        (self.continuing if continues else self.waiting).append(Waiting(submission, on_event, continues, matcher))
        self.known.add(request.request_id)

    def can_take(self, num_free: int, now: float) -> bool:
        """Whether one of the free places goes to a waiting request."""
        return self._next(num_free, now) is not None

    def take(self, num_free: int, now: float) -> Waiting | None:
        """The request that gets a free place next, if any."""
        entry = self._next(num_free, now)
        if entry is not None:
            (self.continuing if entry.continues else self.waiting).remove(entry)
        return entry

    def _next(self, num_free: int, now: float) -> Waiting | None:
        """The first continuation, else the first new request, that is ready, as far as there are places for it."""
        while self._held and self._held[0][1] <= now:
            self._held.popleft()
        if num_free <= 0:
            return None
        entry = next((entry for entry in self.continuing if entry.is_ready), None)
        if entry is None and num_free > len(self._held):
            entry = next((entry for entry in self.waiting if entry.is_ready), None)
        return entry

    def take_cancelled(self) -> tuple[set[str], list[Waiting]]:
        """Ids cancelled since the last time, and those of them that waited, who wait no longer."""
        cancelled, self.cancelled = self.cancelled, set()
        dropped = [entry for entry in (*self.continuing, *self.waiting) if entry.request_id in cancelled]
        self.continuing = deque(entry for entry in self.continuing if entry not in dropped)
        self.waiting = deque(entry for entry in self.waiting if entry not in dropped)
        for entry in dropped:
            self.forget(entry.request_id)
        return cancelled, dropped

    def forget(self, request_id: str) -> None:
        """A request is over: its id is free, and a cancellation that came too late must not meet the id's next user."""
        self.known.discard(request_id)
        self.cancelled.discard(request_id)

    def remember(self, token_ids: IntArray, hold: bool, now: float) -> None:
        """A request has ended that may be continued. token_ids: prompt and output. hold: keep its place for that."""
        key = _key(token_ids)
        self._ended[key] = min(self._ended.pop(key, 0) + 1, self.num_places)
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
