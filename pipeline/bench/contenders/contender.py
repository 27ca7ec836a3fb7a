"""The interface of the systems that the bench measures, and the one over a scheduler in process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from pipeline.bench.data.workload import Prompt
from pipeline.bench.report.results import MeasuredRequest
from pipeline.decoding.request import GenerationRequest
from pipeline.engine.scheduler import Scheduler
from pipeline.engine.submission import Submission


class Contender(Protocol):
    """A system to measure: a strategy in process or through a server, or another library."""

    name: str

    def forget(self) -> None:
        """Drop all state learned from earlier requests. The default is for contenders without such state."""
        return

    def generate(self, request: GenerationRequest, prompt: Prompt) -> MeasuredRequest:
        """Serve and measure one request alone. prompt: source of `request.prompt_ids`, for contenders that take
        text."""


class SchedulerContender:
    """One strategy on an engine in process.

    Each strategy has its own scheduler and draft sources; otherwise it would find another strategy's output for the
    same prompt in the trie. The engine is shared.
    """

    def __init__(
        self,
        strategy: str,
        create: Callable[[], Scheduler],
        name: str | None = None,
    ) -> None:
        """create: returns a scheduler over the shared engine with empty draft sources. name: if it differs from the
        strategy, which may run with several settings."""
        self.name = name or strategy
        self.scheduler = create()
        self._strategy = strategy
        self._create = create

    def forget(self) -> None:
        """Create a new scheduler, without learned state."""
        self.scheduler = self._create()

    def submission(self, request: GenerationRequest) -> Submission:
        return Submission(request, self._strategy)

    def generate(self, request: GenerationRequest, prompt: Prompt) -> MeasuredRequest:
        self.scheduler.engine.forget_cached()  # the KV of the previous contender's requests
        started = time.perf_counter()
        (result,) = self.scheduler.run([self.submission(request)])
        seconds = time.perf_counter() - started
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
            forced_tokens=statistics.num_forced_tokens,
            mask_seconds=statistics.mask_seconds,
            guide_seconds=statistics.guide_seconds,
            finish_reason=None if result.finish_reason is None else result.finish_reason.value,
            accepted_by_source=dict(statistics.accepted_by_source),
            reliability=self.scheduler.drafter.reliability.take(),
        )


def greedy_measurement(
    request: GenerationRequest,
    output_ids: list[int],
    acceptance_lengths: list[int],
    draft_tokens: int,
    seconds: float,
    ttft_s: float,
) -> MeasuredRequest:
    """The measurement of another library's greedy output. acceptance_lengths: tokens emitted by each pass."""
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
