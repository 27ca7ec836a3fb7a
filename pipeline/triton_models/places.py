"""Places in an engine, shared fairly among requests.

A request keeps its place from one call to the next, as its KV cache lies there. While others wait, a request that has
had its place for a slice of time hands it on between two calls and waits for another one. So a short request waits for
a slice, not for the end of long ones. Whoever waits longest of a tenant goes first, and tenants take turns.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from pipeline.errors import BusyError

# What a hand-over costs, the prefix of the one who comes back, is to be small against it.
SLICE_S = 2.0
Clock = Callable[[], float]


class Places:
    """The places of one engine. Lives in one event loop."""

    def __init__(
        self, num_places: int, max_waiting: int, slice_s: float = SLICE_S, clock: Clock = time.perf_counter
    ) -> None:
        """max_waiting: requests that may wait for their first place."""
        self._num_free = num_places
        self._max_waiting = max_waiting
        self._num_new = 0
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self.slice_s = slice_s
        self.clock = clock

    @property
    def is_contended(self) -> bool:
        """Whether somebody waits."""
        return bool(self._waiting)

    @asynccontextmanager
    async def place(self, tenant: str) -> AsyncGenerator[Place, None]:
        """A place for the length of a block. Raises BusyError if too many wait already."""
        if not self._num_free and self._num_new >= self._max_waiting:
            raise BusyError(f"busy: {self._max_waiting} requests are waiting already; send the request again later")
        self._num_new += 1
        try:
            await self.acquire(tenant)
        finally:
            self._num_new -= 1
        place = Place(self, tenant)
        try:
            yield place
        finally:
            place.leave()

    async def acquire(self, tenant: str) -> None:
        if self._num_free and not self._waiting:
            self._num_free -= 1
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.release()  # it was handed a place just now
            else:
                self._forget(tenant, future)
            raise

    def release(self) -> None:
        """Hand a place to the one whose turn it is, or put it back."""
        if not self._waiting:
            self._num_free += 1
            return
        tenant, queue = next(iter(self._waiting.items()))
        future = queue.popleft()
        self._waiting.move_to_end(tenant)
        if not queue:
            del self._waiting[tenant]
        if future.done():  # cancelled, and not yet forgotten
            self.release()
        else:
            future.set_result(None)

    def _forget(self, tenant: str, future: asyncio.Future[None]) -> None:
        queue = self._waiting.get(tenant)
        if queue is not None and future in queue:
            queue.remove(future)
            if not queue:
                del self._waiting[tenant]


def tenant_of(namespace: str) -> str:
    """The tenant to whom a namespace belongs, as the gateway writes it: TENANT/NAME; empty where there are no keys."""
    tenant, separator, _ = namespace.partition("/")
    return tenant if separator else ""


class Place:
    """What one request holds."""

    def __init__(self, places: Places, tenant: str) -> None:
        self._places = places
        self._tenant = tenant
        self._is_held = True
        self._since = places.clock()

    async def offer(self) -> None:
        """Between two calls: hand the place on if somebody waits and this request has had it for a slice, and wait for
        another one."""
        if not self._places.is_contended or self._places.clock() - self._since < self._places.slice_s:
            return
        self.leave()
        await self._places.acquire(self._tenant)
        self._is_held, self._since = True, self._places.clock()

    def leave(self) -> None:
        """Give the place back; twice does nothing."""
        if self._is_held:
            self._is_held = False
            self._places.release()
