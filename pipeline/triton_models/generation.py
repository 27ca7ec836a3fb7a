"""One request in the BLS model: the decode loop of `Session`, with a Triton model as the target.

trie, hybrid        a call per step: draft, send context and drafts to the target, advance, emit text. The torch engine
                    may go on for a few steps, with drafts of its own sources
none, lookahead     the target decodes several tokens per call: TensorRT-LLM streams the whole output of one call; the
                    torch engine, which reuses its KV cache from call to call, returns a few tokens per call
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

from pipeline.decoding.request import FinishReason
from pipeline.decoding.session import GenerationStatistics, Session, StepOutcome, outcome_of_tokens
from pipeline.decoding.sources.supplied import Supplied
from pipeline.decoding.tree import EMPTY_TREE, DraftTree
from pipeline.triton_models.call_planning import (
    WITHOUT_DRAFTS,
    ChainCallPlanner,
    PlannedCall,
    TreeCallPlanner,
    main_chain,
)
from pipeline.triton_models.call_results import (
    DraftCounts,
    counts_of,
    ended_by_end_token,
    has_stop_word,
    num_steps_of,
    total,
)
from pipeline.triton_models.call_tensors import call_tensors, late_ids, stop_tokens
from pipeline.triton_models.engine_binding import EngineBinding
from pipeline.triton_models.fair_slots import HeldSlot
from pipeline.triton_models.partial_output import LOGIT_OUTPUTS, HeldLogits, PartialOutput
from pipeline.triton_models.tensors import Array, Tensors, token_ids
from pipeline.triton_models.text_codec import TextCodec
from pipeline.triton_models.text_request import TextRequest
from pipeline.triton_models.text_stream import TextStream
from pipeline.triton_models.token_output import TokenOutput


@dataclass(slots=True)
class Generation:
    """State of one request. started, step_times: arrival, and time of each response of the target with tokens, in
    seconds of time.perf_counter. step_sizes: number of these tokens. prediction: the client's guess at the output, if
    drafts use it. outcome: a finish reason, "cancelled" or "error", of an ended request. output_ids: the output so far
    with its end token, up to the last token of a stop word."""

    request: TextRequest
    session: Session
    codec: TextCodec
    engine: EngineBinding
    slot: HeldSlot
    started: float
    prediction: Supplied | None = None
    outcome: str = "error"
    output_ids: list[int] = field(default_factory=list)
    step_times: list[float] = field(default_factory=list)
    step_sizes: list[int] = field(default_factory=list)
    num_calls: int = 0
    num_calls_without_draft: int = 0
    _text: TextStream = field(init=False)
    # Holds back tokens that may belong to a stop word or end within a character; None if the client receives text.
    _tokens: TokenOutput | None = field(init=False)
    _steps: ChainCallPlanner | TreeCallPlanner = field(init=False)
    # Sum over the finished calls; None before the target's first counts.
    _counts: DraftCounts | None = None
    _logits: HeldLogits = field(default_factory=HeldLogits)

    def __post_init__(self) -> None:
        self._text = TextStream(self.codec, self.request.stop_words, self.request.generation.min_new_tokens)
        tokens_only = self.request.tokens_only
        self._tokens = TokenOutput(self.codec, self._text, self.session.output_ids) if tokens_only else None
        limits, costs, is_stream = self.engine.traits.limits, self.engine.costs, self.request.stream
        if limits is not None:
            self._steps = ChainCallPlanner(limits, self.session.budget.max_depth, costs)
        else:
            is_watched = is_stream or bool(self.request.stop_words)
            self._steps = TreeCallPlanner(is_stream, is_watched, self.prediction is not None, costs)

    @property
    def finish_reason(self) -> FinishReason | None:
        return FinishReason.STOP_WORDS if self._text.stopped else self.session.finish_reason

    @property
    def num_output_tokens(self) -> int:
        """Output tokens without the end token, as TensorRT-LLM counts them."""
        return len(self.output_ids) - (self.session.finish_reason is FinishReason.END_TOKEN and not self._text.stopped)

    @property
    def statistics(self) -> GenerationStatistics:
        statistics = self.session.statistics
        if self._counts is not None:
            steps, statistics.num_draft_tokens, statistics.num_accepted_tokens = self._counts
            statistics.num_drafted_steps = steps
        return statistics

    async def run(self) -> AsyncGenerator[PartialOutput, None]:
        """Yield the output part by part. Closing the generator early cancels the request."""
        try:
            while self.finish_reason is None:
                step = self._within_min_tokens(self._next_step())
                async with aclosing(self._streamed(step) if self.engine.is_streamed else self._called(step)) as parts:
                    async for part in parts:
                        yield part
                if self.finish_reason is None:
                    await self.slot.offer()
            if self._tokens is not None:
                rest = self._tokens.finish()
                yield PartialOutput("", rest, self._logits.take(self._num_scored(rest)))
            elif text := self._text.finish():
                yield PartialOutput(text, [])
        finally:
            self.session.close()

    def _num_scored(self, token_ids: list[int]) -> int:
        """Tokens that have a log probability: all but the end token."""
        return sum(token not in self.request.generation.end_ids for token in token_ids)

    def _next_step(self) -> PlannedCall:
        session, steps, is_first = self.session, self._steps, not self.num_calls
        remaining = session.num_remaining_tokens
        if isinstance(steps, ChainCallPlanner):
            if self.engine.is_streamed:
                return PlannedCall(EMPTY_TREE, remaining)
            return steps.next(session.propose(), len(session.context), remaining)
        if (strategy := self.engine.strategy) in WITHOUT_DRAFTS:
            return steps.next_without_drafts(strategy == "lookahead", remaining, is_first)
        return steps.next(session.propose(), remaining, is_first)

    def _within_min_tokens(self, step: PlannedCall) -> PlannedCall:
        """Cut a step at min_tokens if TensorRT-LLM must ban end tokens until there: it can ban them for a whole call
        only."""
        limits, num_tokens = self.engine.traits.limits, len(self.session.output_ids)
        if limits is None or not late_ids(self.request, num_tokens):
            return step
        missing = self.request.generation.min_new_tokens - num_tokens
        # A context beyond the longest prompt cannot be sent in a next call.
        if step.num_tokens <= missing or len(self.session.context) + missing > limits.longest_prompt:
            return step
        return PlannedCall(main_chain(step.tree, missing - 1), missing)

    async def _called(self, step: PlannedCall) -> AsyncGenerator[PartialOutput, None]:
        """Yield the response to one call as one part."""
        num_before = len(self.output_ids)
        outputs, wanted = self.engine.traits.outputs, self.request.wanted
        if wanted.of_output or wanted.of_prompt:
            outputs += LOGIT_OUTPUTS
        response, started = await self.engine.response(
            self._tensors(step), outputs, self._call_id, has_begun=self.num_calls > 0
        )
        part = self._take_response(step, response, started)
        new = self.output_ids[num_before:]
        self._logits.add(response, self._num_scored(new))
        num_shown = self._num_scored(part.token_ids if self.request.tokens_only else new)
        yield part._replace(logits=self._logits.take(num_shown))

    def _take_response(self, step: PlannedCall, response: Tensors, started: float) -> PartialOutput:
        """Append the tokens of a response to the session and return their part. started: start of the call."""
        traits = self.engine.traits
        self._count_call(step)
        ids = token_ids(response, "output_ids").tolist()
        num_received = len(ids)
        if ended_by_end_token(traits, step.tree, ids, response):
            ids += self._end_token()
        counts = counts_of(response)
        num_steps = num_steps_of(ids, response, 0 if counts is None else counts.accepted)
        part = self._take(step.tree, ids, num_steps) if ids else PartialOutput("", [])
        self._counts = total(self._counts, counts)
        if self.finish_reason is not None:
            return part
        if traits.limits is not None and not len(step.tree) and num_received < step.num_tokens:
            # Fewer tokens than requested mean an end token, which is never returned.
            part = part.joined(self._take(EMPTY_TREE, self._end_token()))
        elif not num_received:
            raise RuntimeError("the target model returned neither tokens nor a finish reason")
        elif self.engine.costs is not None and self.num_calls > 1:  # the first call includes the prefill
            passes, num_drafts = (1 if len(step.tree) else num_received), len(step.tree)
            if traits.extended and counts is not None:  # exact figures, with the engine's own drafts
                passes, num_drafts = num_steps, counts.drafted
                if num_steps > 1:
                    num_first = len(outcome_of_tokens(step.tree, ids).nodes) + 1
                    self.engine.costs.record_own_steps(num_steps - 1, max(0, len(ids) - num_first))
            self.engine.costs.record(passes, num_drafts, time.perf_counter() - started)
        return part

    async def _streamed(self, step: PlannedCall) -> AsyncGenerator[PartialOutput, None]:
        """Yield the responses to one streamed call as parts. Leaving the stream at a stop word in the text ends the
        target's request."""
        counts, num_received, num_new = self._counts, 0, 0
        stream = self.engine.responses(self._tensors(step), self._call_id, has_begun=self.num_calls > 0)
        self._count_call(step)
        async with aclosing(stream) as responses:
            async for response in responses:
                self._counts = total(counts, counts_of(response))
                ids = token_ids(response, "output_ids").tolist()
                if self.session.finished or not ids:
                    continue  # the target's request ends by itself; a later response has the last counts
                num_received, num_new = num_received + len(ids), len(ids)
                yield self._take(EMPTY_TREE, ids)
                if self._text.stopped or self._must_yield_slot():
                    return
        if self.finish_reason is not None or num_received >= step.num_tokens:
            return
        # Fewer tokens than requested mean the end token, which is never returned, or the tokens of a stop word. Such
        # tokens end the output only if the text has the stop word.
        stops = stop_tokens(self.request)
        if not num_received or not has_stop_word(self.session.context.tolist(), num_new, stops):
            yield self._take(EMPTY_TREE, self._end_token())

    def _must_yield_slot(self) -> bool:
        """Whether to end a stream so that another request gets the slot. A second call computes the rest. False if a
        second call could change the output, or if the context is too long for a prompt."""
        limits, request = self.engine.traits.limits, self.request.generation
        is_repeatable = request.sampling.greedy and request.guide is None
        return (
            not self.session.finished
            and self.slot.is_due
            and is_repeatable
            and limits is not None
            and len(self.session.context) <= limits.longest_prompt
        )

    def _count_call(self, step: PlannedCall) -> None:
        self.num_calls += 1
        self.num_calls_without_draft += not len(step.tree)

    def _tensors(self, step: PlannedCall) -> dict[str, Array]:
        return call_tensors(self.request, self.session, self.engine, step, self.num_calls)

    @property
    def _call_id(self) -> str:
        return f"{self.request.generation.request_id}.{self.num_calls}"

    def _take(self, tree: DraftTree, ids: list[int], num_steps: int = 1) -> PartialOutput:
        """Append tokens to the session; return their part. num_steps: passes for tokens without a tree."""
        extended = self.engine.traits.extended
        outcome = outcome_of_tokens(tree, ids, num_steps if extended else 1)
        if not len(tree) or (not extended and len(ids) != len(outcome.nodes) + 1):
            # Plain decoding: no drafts, or TensorRT-LLM dropped them for lack of room.
            tree, outcome = EMPTY_TREE, StepOutcome([], ids, num_steps=num_steps)
        emitted = self.session.advance(tree, outcome)
        self.step_times.append(time.perf_counter())
        self.step_sizes.append(len(emitted))
        texts: list[str] = []
        sent: list[int] = []
        for token in emitted:
            if self._text.stopped:
                break
            self.output_ids.append(token)
            is_end = token in self.request.generation.end_ids
            if self._tokens is not None:
                sent += self._tokens.finish([token]) if is_end else self._tokens.push(token)
            elif not is_end:
                texts.append(self._text.push(token))
        return PartialOutput("".join(texts), sent)

    def _end_token(self) -> list[int]:
        if self.request.end_id is None:
            raise RuntimeError("the target model ended the output early, and the request has no end token")
        return [self.request.end_id]
