"""One request's way through the BLS model: the decode loop of `Session`, with a Triton model as the one who verifies.

    trie, hybrid        draft here -> call the target with prefix and drafts -> text -> again
    none, lookahead     the target decodes by itself: a piece a call, or all in one if the client does not stream

TensorRT-LLM tells nothing but tokens. That an end token came shows by its absence: a step returns the accepted part of
the chain and one token more, a chunk as many tokens as were asked for, unless an end token came first.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import NamedTuple

from pipeline.decoding.request import FinishReason
from pipeline.decoding.session import GenerationStatistics, Session, StepOutcome, outcome_of_tokens
from pipeline.decoding.sources.supplied import Supplied
from pipeline.decoding.tree import EMPTY_TREE, DraftTree
from pipeline.engine.chains import Triple
from pipeline.engine.traits import TargetTraits
from pipeline.errors import BusyError, RequestError
from pipeline.triton_models.call_costs import CallCosts
from pipeline.triton_models.call_tensors import call_tensors, first_end_id, late_ids
from pipeline.triton_models.guide_tensors import wanted_outputs
from pipeline.triton_models.logit_pieces import LogitPieces
from pipeline.triton_models.piece import Piece
from pipeline.triton_models.places import Place
from pipeline.triton_models.steps import (
    CHUNK_TOKENS,
    FORCED_TOKENS,
    LONGEST_PIECE,
    PIECE_TOKENS,
    ChainSteps,
    Step,
    main_chain,
    next_piece,
)
from pipeline.triton_models.target import Target
from pipeline.triton_models.tensors import Array, Tensors, integer, text, token_ids
from pipeline.triton_models.text_codec import TextCodec
from pipeline.triton_models.text_request import TextRequest
from pipeline.triton_models.text_stream import TextStream
from pipeline.triton_models.token_output import TokenOutput

# A target that is too busy for the next step of a stream is asked again after so long, and twice as long each time.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 0.5
# Until it has been busy for so long.
BUSY_PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class Engine:
    """Whom a request is sent to, and how. lookahead: W, N and G to send, if any. costs: by which drafts must pay, if
    they must."""

    target: Target
    traits: TargetTraits
    strategy: str
    lookahead: Triple | None = None
    costs: CallCosts | None = None


class _DraftCounts(NamedTuple):
    """As the target counts them, its own drafts included."""

    drafted: int
    accepted: int


@dataclass(slots=True)
class Generation:
    """State of one request. prediction: the client's, where drafts are made of it. output_ids: the output so far, an
    end token included, and of a stop word no more than its last token. step_times: when each step's tokens came."""

    request: TextRequest
    session: Session
    codec: TextCodec
    engine: Engine
    place: Place
    prediction: Supplied | None = None
    output_ids: list[int] = field(default_factory=list)
    step_times: list[float] = field(default_factory=list)
    num_calls: int = 0
    num_calls_without_draft: int = 0
    _text: TextStream = field(init=False)
    # Keeps tokens back that may belong to a stop word or end within a character; None where the client gets text.
    _tokens: TokenOutput | None = field(init=False)
    _chain: ChainSteps | None = field(init=False)
    # Summed over the calls that have ended; None until the target has told.
    _counts: _DraftCounts | None = None
    _logits: LogitPieces = field(default_factory=LogitPieces)
    _response_tensors: Tensors = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._text = TextStream(self.codec, self.request.stop_words)
        tokens_only = self.request.tokens_only
        self._tokens = TokenOutput(self.codec, self._text, self.session.output_ids) if tokens_only else None
        limits = self.engine.traits.limits
        max_drafts = self.session.budget.max_depth
        self._chain = None if limits is None else ChainSteps(limits, max_drafts, self.engine.costs)

    @property
    def strategy(self) -> str:
        return self.engine.strategy

    @property
    def finish_reason(self) -> FinishReason | None:
        return FinishReason.STOP_WORDS if self._text.stopped else self.session.finish_reason

    @property
    def num_output_tokens(self) -> int:
        """Tokens of the output without an end token, as TensorRT-LLM counts."""
        return len(self.output_ids) - (self.session.finish_reason is FinishReason.END_TOKEN and not self._text.stopped)

    @property
    def num_accepted_prediction_tokens(self) -> int:
        """Tokens of the client's prediction that were verified and right."""
        return 0 if self.prediction is None else self.prediction.num_accepted

    @property
    def statistics(self) -> GenerationStatistics:
        statistics = self.session.statistics
        if self._counts is not None:
            statistics.num_draft_tokens, statistics.num_accepted_tokens = self._counts
        return statistics

    async def run(self) -> AsyncGenerator[Piece, None]:
        """The output, piece by piece. Leaving the iteration early cancels the request."""
        try:
            while self.finish_reason is None:
                num_before = len(self.output_ids)
                piece = await self._call(self._within_min_tokens(self._next_step()))
                new = self.output_ids[num_before:]
                self._logits.add(self._response_tensors, self._num_scored(new))
                num_shown = self._num_scored(piece.token_ids if self.request.tokens_only else new)
                yield piece._replace(logits=self._logits.take(num_shown))
                if self.finish_reason is None:
                    await self.place.offer()
            if self._tokens is not None:
                rest = self._tokens.finish()
                yield Piece("", rest, self._logits.take(self._num_scored(rest)))
            elif not self.request.tokens_only and (text := self._text.finish()):
                yield Piece(text, [])
        finally:
            self.session.close()

    def _num_scored(self, token_ids: list[int]) -> int:
        """Tokens that have a log probability: all but the end token."""
        return sum(token not in self.request.generation.end_ids for token in token_ids)

    def _next_step(self) -> Step:
        remaining = self.session.num_remaining_tokens
        if (piece := PIECE_TOKENS.get(self.strategy)) is not None:
            # Of what stop words the text will have, the target knows nothing: it must not run on behind them for long.
            piece = piece if self.request.stream or self.request.stop_words else min(remaining, LONGEST_PIECE)
            if self.request.generation.guide is not None and self.engine.traits.limits is not None:
                piece = remaining  # TensorRT-LLM begins the grammar anew with every call
            return next_piece(piece, self.engine.traits.limits, len(self.session.context), remaining)
        tree = self.session.propose()
        if self._chain is not None:
            return self._chain.next(tree, len(self.session.context), remaining)
        # What a grammar forces comes on top of a step's tokens.
        num_forced = 0 if self.request.generation.guide is None else FORCED_TOKENS
        if not len(tree):
            return Step(tree, min(CHUNK_TOKENS + num_forced, remaining))
        # Under "hybrid" the engine's own drafts may reach deeper than the tree.
        depth = max(len(tree), self.session.budget.max_depth) if self.strategy == "hybrid" else len(tree)
        return Step(tree, min(depth + 1 + num_forced, remaining))

    def _within_min_tokens(self, step: Step) -> Step:
        """A call in which TensorRT-LLM has to keep off some end tokens ends where they are allowed: it can ban them for
        a whole call only."""
        limits, num_tokens = self.engine.traits.limits, len(self.session.output_ids)
        if limits is None or not late_ids(self.request.generation, num_tokens, self.codec):
            return step
        missing = self.request.generation.min_new_tokens - num_tokens
        # Beyond the longest prompt there is no next call.
        if step.num_tokens <= missing or len(self.session.context) + missing > limits.longest_prompt:
            return step
        return Step(main_chain(step.tree, missing - 1), missing)

    async def _call(self, step: Step) -> Piece:
        """One call to the target; the text that it adds."""
        traits = self.engine.traits
        tensors = call_tensors(
            self.request, self.session, self.codec, traits, step, self.strategy, self.engine.lookahead, self.num_calls
        )
        response, started = await self._response(tensors)
        self._response_tensors = response
        self.num_calls += 1
        self.num_calls_without_draft += not len(step.tree)
        ids = token_ids(response, "output_ids").tolist()
        num_received = len(ids)
        if self._ended_by_end_token(step.tree, ids, response):
            ids += self._end_token()
        piece = self._take(step.tree, ids, response) if ids else Piece("", [])
        self._add_counts(_counts_of(response))
        if self.finish_reason is not None:
            return piece
        if traits.limits is not None and not len(step.tree) and num_received < step.num_tokens:
            # Fewer tokens than asked for and no word of why: an end token, which is never returned.
            piece = piece.joined(self._take(EMPTY_TREE, self._end_token()))
        elif not num_received:
            raise RuntimeError("the target model returned neither tokens nor a reason to end")
        elif self.engine.costs is not None and self.num_calls > 1:  # the first call computed the prompt as well
            passes = 1 if len(step.tree) else num_received
            self.engine.costs.record(passes, len(step.tree), time.perf_counter() - started)
        return piece

    async def _response(self, tensors: dict[str, Array]) -> tuple[Tensors, float]:
        """The target's response and when it was asked. A request that has not begun may be refused as there are too
        many; one that runs waits until there is room, or its client leaves."""
        request_id = f"{self.request.generation.request_id}.{self.num_calls}"
        outputs = self.engine.traits.outputs + wanted_outputs(self.request.wanted, of_prompt=not self.num_calls)
        patient_until, pause = time.perf_counter() + BUSY_PATIENCE_S, _FIRST_PAUSE_S
        while True:
            started = time.perf_counter()
            try:
                return await self.engine.target.call(tensors, outputs, request_id), started
            except BusyError:
                if not self.num_calls or started + pause > patient_until:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _take(self, tree: DraftTree, ids: list[int], response: Tensors | None = None) -> Piece:
        """Enter a response's tokens into the session; the text that they add."""
        outcome = outcome_of_tokens(tree, ids)
        if not len(tree) or (self.engine.traits.limits is not None and len(ids) != len(outcome.nodes) + 1):
            # Plain decoding, also where TensorRT-LLM had no room for the drafts that it was sent.
            tree, outcome = EMPTY_TREE, StepOutcome([], ids, num_steps=self._num_steps(ids, response))
        emitted = self.session.advance(tree, outcome)
        self.step_times.append(time.perf_counter())
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
        return Piece("".join(texts), sent)

    def _num_steps(self, ids: list[int], response: Tensors | None) -> int:
        """Passes behind the tokens of a response that is not a step over a tree: one for each token that was not an
        accepted draft of the engine's own."""
        if response is None:
            return 1
        counts = _counts_of(response) or _DraftCounts(0, 0)
        return integer(response, "num_steps") or max(1, len(ids) - counts.accepted)

    def _ended_by_end_token(self, tree: DraftTree, ids: list[int], response: Tensors) -> bool:
        if self.engine.traits.extended:
            reason = text(response, "finish_reason")
            if reason == FinishReason.CANCELLED.value:
                raise RequestError("the target model ended the request; the server is shutting down")
            return reason == FinishReason.END_TOKEN.value
        if not len(tree):
            return False
        if not ids:
            return True
        if len(outcome_of_tokens(tree, [*ids, -1]).nodes) < len(ids):
            return False
        # Nothing but a part of the chain: either an end token came after it, or the engine verified a part only, as
        # its count says (with chunked context it may drop drafts without a word), and the target's own token is like
        # the chain's. If in doubt go on: an end shows in the next call, which then brings nothing.
        limits, drafted = self.engine.traits.limits, integer(response, "total_draft_tokens")
        assert limits is not None, "only TensorRT-LLM leaves the reason out"
        return not limits.chunked_context and (drafted is None or drafted >= len(tree))

    def _end_token(self) -> list[int]:
        end_ids = self.request.generation.end_ids
        if not end_ids:
            raise RuntimeError("the target model ended the output without having been given an end token")
        return [first_end_id(end_ids, self.codec)]

    def _add_counts(self, counts: _DraftCounts | None) -> None:
        if counts is not None:
            before = self._counts or _DraftCounts(0, 0)
            self._counts = _DraftCounts(before.drafted + counts.drafted, before.accepted + counts.accepted)


def _counts_of(response: Tensors) -> _DraftCounts | None:
    drafted = integer(response, "total_draft_tokens")
    return None if drafted is None else _DraftCounts(drafted, integer(response, "total_accepted_draft_tokens") or 0)
