"""Closed-loop load on a running server: each client sends its next request after the end of the last one."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass, field
from threading import Event, Lock
from typing import Any

import numpy as np

from pipeline.errors import RequestError, ServerError
from pipeline.server.client import Completion, TextQuery
from pipeline.server.client_threads import ClientThreads

# Limit of stored distinct error messages.
MAX_ERROR_KINDS = 20
REFUSED_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """How many requests to send, and for how long. concurrency: number of clients. duration_s: time during which
    requests are sent. grace_s: further time after which requests in flight count as errors. max_requests: limit of
    requests, if any. max_rate: limit of requests per second over all clients, if any."""

    concurrency: int
    duration_s: float
    max_requests: int | None = None
    max_rate: float | None = None
    grace_s: float = 30.0


@dataclass(slots=True)
class LoadResult:
    """Result of a load, times in seconds. gaps_s: times between the arrivals of parts of an answer. token_s: per
    request, time from the first to the last part divided by the number of tokens after the first."""

    seconds: float = 0.0
    num_requests: int = 0
    output_tokens: int = 0
    steps: int = 0
    ttft_s: list[float] = field(default_factory=list)
    latency_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    token_s: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)

    def add(self, answer: Completion) -> None:
        """Count a finished request."""
        statistics = answer.statistics or {}
        num_tokens = len(statistics.get("output_ids", ()))
        self.num_requests += 1
        self.output_tokens += num_tokens
        self.steps += int(statistics.get("num_steps", 0))
        self.latency_s.append(answer.total_s)
        if answer.arrivals_s:
            first, last = answer.arrivals_s[0], answer.arrivals_s[-1]
            self.ttft_s.append(first)
            self.gaps_s += np.diff(answer.arrivals_s).tolist()
            if num_tokens > 1:
                self.token_s.append((last - first) / (num_tokens - 1))

    def add_error(self, text: str) -> None:
        known = text in self.errors or len(self.errors) < MAX_ERROR_KINDS
        self.errors[text if known else "other errors"] += 1


def run_load(
    generate: Callable[[TextQuery, float], Completion],
    queries: Sequence[TextQuery],
    plan: LoadPlan,
    on_answer: Callable[[LoadResult], None] = lambda result: None,
) -> LoadResult:
    """Send the requests in turn with `generate(query, timeout_s)`. RequestError and ServerError are counted; any other
    exception, and Ctrl-C, end the run without the running requests. on_answer: called after each request."""
    result = LoadResult()
    lock, stopped = Lock(), Event()
    numbers = itertools.count()
    started = time.perf_counter()

    def elapsed() -> float:
        return time.perf_counter() - started

    def client() -> None:
        while not stopped.is_set() and elapsed() < plan.duration_s:
            number = next(numbers)
            if plan.max_requests is not None and number >= plan.max_requests:
                return
            if plan.max_rate is not None:
                # The n-th request is due at n / rate.
                if (due := number / plan.max_rate) >= plan.duration_s:
                    return
                if stopped.wait(max(0.0, due - elapsed())):
                    return
            try:
                answer = generate(queries[number % len(queries)], plan.duration_s + plan.grace_s - elapsed())
            except (RequestError, ServerError) as error:
                with lock:
                    result.add_error(str(error))
                # Prevents a busy loop with a server that refuses immediately.
                time.sleep(REFUSED_PAUSE_S)
            else:
                with lock:
                    result.add(answer)
            on_answer(result)

    with ClientThreads(plan.concurrency) as clients:
        try:
            for ended in as_completed([clients.submit(client) for _ in range(plan.concurrency)]):
                ended.result()
        finally:
            stopped.set()
    result.seconds = elapsed()
    return result


def summary_of(result: LoadResult) -> dict[str, Any]:
    """Figures as JSON values; percentiles in milliseconds, None without measurements."""
    return {
        "seconds": round(result.seconds, 3),
        "requests": result.num_requests,
        "errors": sum(result.errors.values()),
        "requests_per_s": round(result.num_requests / result.seconds, 3) if result.seconds else 0.0,
        "output_tokens_per_s": round(result.output_tokens / result.seconds, 2) if result.seconds else 0.0,
        "acceptance_length": round(result.output_tokens / result.steps, 3) if result.steps else None,
        "ttft_ms": percentiles(result.ttft_s),
        "inter_token_ms": percentiles(result.token_s),
        "between_parts_ms": percentiles(result.gaps_s),
        "latency_ms": percentiles(result.latency_s),
        "error_kinds": dict(result.errors.most_common()),
    }


def percentiles(seconds: Sequence[float]) -> dict[str, float] | None:
    """Return p50, p95, p99 and the largest of times in seconds, in milliseconds; None without times."""
    if not seconds:
        return None
    values = 1000 * np.percentile(seconds, [50, 95, 99, 100])
    return {name: round(float(value), 2) for name, value in zip(("p50", "p95", "p99", "max"), values, strict=True)}
