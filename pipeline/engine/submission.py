"""Input and output of the scheduler."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pipeline.config.schema import LookaheadConfig
from pipeline.decoding.log_probs import LogitOptions, PromptLogits, TokenLogProb
from pipeline.decoding.request import FinishReason, GenerationRequest
from pipeline.decoding.session import GenerationStatistics
from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.tree import EMPTY_TREE, DraftTree, FloatArray

logger = logging.getLogger(__name__)
# Called with the position of a chosen token in its sequence, and the logits [vocab] from which it was chosen.
OnRow = Callable[[int, FloatArray], None]


@dataclass(frozen=True, slots=True)
class Submission:
    """A request for the scheduler.

    budget: drafts per step, None for the scheduler's default. supplied: tree to verify in the first step, by
    strategies with supplied drafts. only_supplied: whether no other source of the strategy drafts. lookahead: W, N, G
    of this request, None for the engine's. max_steps: maximum number of steps, None for no limit. to_be_continued:
    whether another request will continue this output, unless it ends. wanted: parts of the target's logits to return.
    reuse: whether KV of earlier requests may be used for the prompt. on_row: called for each output token except those
    that a grammar forces.
    """

    request: GenerationRequest
    strategy: str = "auto"
    budget: DraftBudget | None = None
    supplied: DraftTree = EMPTY_TREE
    only_supplied: bool = False
    lookahead: LookaheadConfig | None = None
    max_steps: int | None = None
    to_be_continued: bool = False
    wanted: LogitOptions = field(default_factory=LogitOptions)
    reuse: bool = True
    on_row: OnRow | None = None


@dataclass(frozen=True, slots=True)
class StepEvent:
    """Result of a step for one request. finish_reason: None also on the last event if `max_steps` ended the request.
    log_probs: of token_ids without an end token, if requested. prompt: of the prompt, if requested, on the first
    event with tokens."""

    request_id: str
    token_ids: list[int]
    statistics: GenerationStatistics
    finish_reason: FinishReason | None = None
    error: Exception | None = None
    done: bool = False
    log_probs: Sequence[TokenLogProb] = ()
    prompt: PromptLogits | None = None


def ended_waiting(submission: Submission, reason: FinishReason | None, error: Exception | None = None) -> StepEvent:
    """The only event of a request that ended without a slot."""
    return StepEvent(submission.request.request_id, [], GenerationStatistics(), reason, error, done=True)


@dataclass(slots=True)
class GenerationResult:
    """Collects the events of one request. error: the error that it ended with, if any."""

    output_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    statistics: GenerationStatistics = field(default_factory=GenerationStatistics)
    log_probs: list[TokenLogProb] = field(default_factory=list)
    prompt: PromptLogits | None = None
    error: Exception | None = None

    def take(self, event: StepEvent) -> None:
        """Add the result of a step."""
        self.output_ids += event.token_ids
        self.log_probs += event.log_probs
        self.prompt = event.prompt or self.prompt
        self.finish_reason, self.statistics, self.error = event.finish_reason, event.statistics, event.error


OnEvent = Callable[[StepEvent], None]


def notify(on_event: OnEvent, event: StepEvent) -> None:
    """Call on_event. An error in it must not affect other requests."""
    try:
        on_event(event)
    except Exception:
        logger.exception("the receiver of events of request %s failed", event.request_id)
