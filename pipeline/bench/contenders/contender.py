"""The interface of a measured generator: it generates, is timed from outside, and can forget what it has learned."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from pipeline.bench.data.workload import Prompt
from pipeline.decoding.drafter import Drafter
from pipeline.decoding.reliability import ReliabilityRow
from pipeline.decoding.request import GenerationRequest
from pipeline.engine.submission import GenerationResult, OnEvent, Submission


@dataclass(frozen=True, slots=True)
class MeasuredRequest:
    """One request as it ran. The fields are part of `results.RequestRecord`."""

    output_ids: list[int]
    steps: int
    draft_tokens: int
    accepted_tokens: int
    acceptance_lengths: list[int]
    seconds: float
    ttft_s: float
    draft_seconds: float
    finish_reason: str | None
    accepted_by_source: dict[str, int] = field(default_factory=dict)
    reliability: list[ReliabilityRow] = field(default_factory=list)


class Contender(Protocol):
    """A strategy, in process or through a server, or another library's generate()."""

    name: str

    def forget(self) -> None:
        """Empty everything learnt from earlier requests."""

    def generate(self, request: GenerationRequest, prompt: Prompt) -> MeasuredRequest:
        """Serve one request alone. prompt: the source of `request.prompt_ids`, for contenders that receive text."""


class SchedulerLike(Protocol):
    """The used part of `pipeline.engine.scheduler.Scheduler`."""

    @property
    def drafter(self) -> Drafter: ...

    def submit(self, submission: Submission, on_event: OnEvent) -> None: ...
    def step(self) -> None: ...
    def run(self, submissions: Sequence[Submission]) -> list[GenerationResult]: ...


class SchedulerContender:
    """One strategy on an engine in process.

    Each strategy has its own scheduler and draft sources: otherwise the second strategy to get a prompt would find the
    first one's output in the trie. The engine, and so the weights, is shared.
    """

    def __init__(
        self,
        strategy: str,
        create: Callable[[], SchedulerLike],
        forget_cached: Callable[[], None],
        name: str | None = None,
    ) -> None:
        """create: makes a scheduler over the shared engine with empty draft sources. forget_cached: drops the KV of
        finished requests, which the next contender would otherwise reuse. name: for one strategy under several
        settings."""
        self.name = name or strategy
        self._strategy = strategy
        self.scheduler = create()
        self._create = create
        self._forget_cached = forget_cached

    def forget(self) -> None:
        """Make a fresh scheduler, so that sources, learnt weights and calibration are forgotten."""
        self.scheduler = self._create()

    def submission(self, request: GenerationRequest) -> Submission:
        return Submission(request, self._strategy)

    def forget_cached(self) -> None:
        self._forget_cached()

    def generate(self, request: GenerationRequest, prompt: Prompt) -> MeasuredRequest:
        self._forget_cached()
        submission = self.submission(request)
        started = time.perf_counter()
        (result,) = self.scheduler.run([submission])
        seconds = time.perf_counter() - started
        return replace(generation_of(result, seconds), reliability=self.scheduler.drafter.reliability.take())


def greedy_measurement(
    request: GenerationRequest,
    output_ids: list[int],
    acceptance_lengths: list[int],
    draft_tokens: int,
    seconds: float,
    ttft_s: float,
) -> MeasuredRequest:
    """The measurement of another library's greedy output. acceptance_lengths: tokens that each of its passes
    brought."""
    steps = len(acceptance_lengths)
    return MeasuredRequest(
        output_ids=output_ids,
        steps=steps,
        draft_tokens=draft_tokens,
        accepted_tokens=len(output_ids) - steps,
        acceptance_lengths=acceptance_lengths,
        seconds=seconds,
        ttft_s=ttft_s,
        draft_seconds=0.0,
        finish_reason="end_token" if output_ids and output_ids[-1] in request.end_ids else "length",
    )


def generation_of(result: GenerationResult, seconds: float) -> MeasuredRequest:
    """Convert the scheduler's counts. seconds: wall time, measured from outside."""
    statistics = result.statistics
    return MeasuredRequest(
        output_ids=result.output_ids,
        steps=statistics.num_steps,
        draft_tokens=statistics.num_draft_tokens,
        accepted_tokens=statistics.num_accepted_tokens,
        acceptance_lengths=list(statistics.acceptance_lengths),
        seconds=seconds,
        ttft_s=statistics.time_to_first_token_s,
        draft_seconds=statistics.draft_seconds,
        finish_reason=None if result.finish_reason is None else result.finish_reason.value,
        accepted_by_source=dict(statistics.accepted_by_source),
    )
