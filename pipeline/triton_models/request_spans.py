"""Trace spans of requests: one per request in `lookahead_bls`, one per engine pass in `tensorrt_llm`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.engine.submission import StepEvent
from pipeline.triton_models.metrics import OnEnd
from pipeline.triton_models.spans import TRACEPARENT, Span, SpanContext, Tracer, sampled_context, span_of
from pipeline.triton_models.tensors import Tensors, text, text_tensor

if TYPE_CHECKING:  # engines have spans, and no requests of this kind
    from pipeline.triton_models.generation import Generation


def traced(tracer: Tracer | None, tensors: Tensors, on_end: OnEnd) -> tuple[Tensors, OnEnd]:
    """Add a span to a request to `lookahead_bls`. Returns the tensors with the new span as `traceparent`, and an
    `on_end` that records the span first. Returns both unchanged without a tracer or a sampled trace."""
    parent = None if tracer is None else sampled_context(text(tensors, TRACEPARENT))
    if tracer is None or parent is None:
        return tensors, on_end
    context = parent.child()

    def record(request: Generation) -> None:
        attributes: dict[str, str | int] = {
            "lookahead.strategy": request.engine.strategy,
            "lookahead.outcome": request.outcome,
            "lookahead.steps": len(request.statistics.acceptance_lengths),
            "lookahead.engine_calls": request.num_calls,
            "lookahead.tokens": request.num_output_tokens,
            "lookahead.draft_tokens": request.statistics.num_draft_tokens,
            "lookahead.accepted_tokens": request.statistics.num_accepted_tokens,
        }
        tracer.record(span_of("lookahead_bls", context, parent, request.started, attributes))
        on_end(request)

    return {**tensors, TRACEPARENT: text_tensor(context.traceparent)}, record


@dataclass(slots=True)
class PassSpans:
    """Makes the spans of one engine request's passes, as children of `parent`. The counts are totals of the passes so
    far."""

    parent: SpanContext
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0

    def span(self, event: StepEvent, started: float) -> Span:
        """Span of the pass that ends now with `event`. started: seconds of time.perf_counter."""
        drafted, accepted = event.statistics.num_draft_tokens, event.statistics.num_accepted_tokens
        attributes = {
            "lookahead.tokens": len(event.token_ids),
            "lookahead.draft_tokens": drafted - self.num_draft_tokens,
            "lookahead.accepted_tokens": accepted - self.num_accepted_tokens,
        }
        self.num_draft_tokens, self.num_accepted_tokens = drafted, accepted
        return span_of("engine pass", self.parent.child(), self.parent, started, attributes)


def pass_spans(tensors: Tensors) -> PassSpans | None:
    """Span maker of a request to `tensorrt_llm`; None if its trace is not sampled."""
    parent = sampled_context(text(tensors, TRACEPARENT))
    return None if parent is None else PassSpans(parent)
