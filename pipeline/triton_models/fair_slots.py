"""Slots of an engine, shared fairly among requests.

A request keeps its slot, which holds its KV cache, from one call to the next. While others wait, a request that has
used its slot for a time slice releases it between two calls and queues again. So a short request waits for one slice,
not for the end of long requests. Tenants take turns (round robin); the requests of a tenant are first in, first out.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from pipeline.errors import BusyError

# Time slice, long compared with the cost of a change: the prefill of the request that gets a slot again.
SLICE_S = 2.0
Clock = Callable[[], float]


class FairSlots:
    """The slots of one engine. Not thread safe."""

    def __init__(
        self, num_slots: int, max_waiting: int, slice_s: float = SLICE_S, clock: Clock = time.perf_counter
    ) -> None:
        """max_waiting: requests that may wait for their first slot."""
        self._num_free = num_slots
        self._max_waiting = max_waiting
        self._num_new = 0
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self.slice_s = slice_s
        self.clock = clock

    @property
    def is_contended(self) -> bool:
        return bool(self._waiting)

    @asynccontextmanager
    async def slot(self, tenant: str) -> AsyncGenerator[HeldSlot, None]:
        """Hold a slot while the block runs. Raises BusyError if `max_waiting` requests wait already."""
        if not self._num_free and self._num_new >= self._max_waiting:
            raise BusyError(f"busy: {self._max_waiting} requests are waiting already; send the request again later")
        self._num_new += 1
        try:
            await self.acquire(tenant)
        finally:
            self._num_new -= 1
        slot = HeldSlot(self, tenant)
        try:
            yield slot
        finally:
            slot.leave()

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
                self.release()  # the slot was assigned before the cancellation
            else:
                self._forget(tenant, future)
            raise

    def release(self) -> None:
        """Give a slot to the next waiting request, or mark it free."""
        while self._waiting:
            tenant, queue = next(iter(self._waiting.items()))
            future = queue.popleft()
            self._waiting.move_to_end(tenant)
            if not queue:
                del self._waiting[tenant]
            if not future.done():  # else it was cancelled, and is not yet removed
                future.set_result(None)
                return
        self._num_free += 1

    def _forget(self, tenant: str, future: asyncio.Future[None]) -> None:
        queue = self._waiting.get(tenant)
        if queue is not None and future in queue:
            queue.remove(future)
            if not queue:
                del self._waiting[tenant]


def split_namespace(namespace: str) -> tuple[str, str]:
    """Tenant and name of a namespace, which the gateway writes as TENANT/NAME, or as NAME on a server without API
    keys."""
    tenant, separator, name = namespace.partition("/")
    return (tenant, name) if separator else ("", namespace)


class HeldSlot:
    """The slot of one request."""

    def __init__(self, slots: FairSlots, tenant: str) -> None:
        self._slots = slots
        self._tenant = tenant
        self._is_held = True
        self._since = slots.clock()

    @property
    def is_due(self) -> bool:
        """Whether a request waits and the time slice of this one is over."""
        return self._slots.is_contended and self._slots.clock() - self._since >= self._slots.slice_s

    async def offer(self) -> None:
        """Release the slot and queue for another, if it is due. Call this between two calls to the engine."""
        if not self.is_due:
            return
        self.leave()
        await self._slots.acquire(self._tenant)
        self._is_held, self._since = True, self._slots.clock()

    def leave(self) -> None:
        """Release the slot. A second call does nothing."""
        if self._is_held:
            self._is_held = False
            self._slots.release()
