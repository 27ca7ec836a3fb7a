"""One request's way through the BLS model: the decode loop of `Session`, with a Triton model as the one who verifies.

    trie, hybrid        draft here -> call the target with prefix and drafts -> text -> again
    none, lookahead     one call to the target, which decodes to the end and streams

Where nothing can be drafted the target is asked for a few tokens at once instead of paying a round trip for each.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field

import numpy as np

from pipeline.decoding.request import FinishReason
from pipeline.decoding.session import GenerationStatistics, Session, StepOutcome, outcome_of_tokens
from pipeline.decoding.tree import EMPTY_TREE, DraftTree, children_of, select_nodes
from pipeline.errors import RequestError
from pipeline.serving.engine_calls import finish_reason_of
from pipeline.serving.target import Target, TargetTraits
from pipeline.serving.tensors import Array, Tensors, integer, pack_word_list, text, token_ids
from pipeline.serving.text_codec import TextCodec
from pipeline.serving.text_request import TextRequest
from pipeline.serving.text_stream import TextStream

# Tokens asked for when there is no draft: enough to spread the cost of a call, few enough to draft again soon.
CHUNK_TOKENS = 4


@dataclass(slots=True)
class Generation:
    """State of one request. output_ids: tokens whose text is part of the output. times: when each step's tokens came."""

    request: TextRequest
    strategy: str
    session: Session
    codec: TextCodec
    target: Target
    traits: TargetTraits
    output_ids: list[int] = field(default_factory=list)
    step_times: list[float] = field(default_factory=list)
    num_calls: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    finish_reason: FinishReason | None = None
    _text: TextStream = field(init=False)

    def __post_init__(self) -> None:
        self._text = TextStream(self.codec, self.request.stop_words)

    @property
    def statistics(self) -> GenerationStatistics:
        """The session's counts, with drafts as the target counts them: its own take part in them."""
        statistics = self.session.statistics
        statistics.num_draft_tokens = max(self.num_draft_tokens, statistics.num_draft_tokens)
        statistics.num_accepted_tokens = max(self.num_accepted_tokens, statistics.num_accepted_tokens)
        return statistics

    async def run(self) -> AsyncIterator[str]:
        """The output's text, piece by piece. Leaving the iteration early cancels the request."""
        try:
            while self.finish_reason is None:
                tree = self._propose()
                before = self.session.num_remaining_tokens
                async with aclosing(self._call(tree)) as pieces:
                    async for piece in pieces:
                        yield piece
                if self.finish_reason is None and self.session.num_remaining_tokens == before:
                    raise RuntimeError("the target model returned neither tokens nor a reason to end")
            if rest := self._text.finish():
                yield rest
        finally:
            self.session.close()

    def _propose(self) -> DraftTree:
        if self.strategy in ("none", "lookahead"):
            return EMPTY_TREE
        tree = self.session.propose()
        return tree if self.traits.trees else main_chain(tree)

    async def _call(self, tree: DraftTree) -> AsyncIterator[str]:
        """One call to the target, taken in as its responses come."""
        request_id = f"{self.request.generation.request_id}.{self.num_calls}"
        tensors = self._tensors(tree)
        asked = integer(tensors, "request_output_len") or 0
        streamed = "streaming" in tensors
        self.num_calls += 1
        num_received = 0
        complete = False
        try:
            async with aclosing(self.target.stream(tensors, request_id)) as responses:
                async for response in responses:
                    ids = token_ids(response, "output_ids").tolist()
                    num_received += len(ids)
                    last = not streamed or "finish_reason" in response
                    self._count_drafts(response)
                    outcome = self._outcome(tree, ids, response, asked - num_received if last or streamed else None)
                    if outcome.token_ids and self.finish_reason is None:
                        piece = self._take(tree, outcome)
                        if piece:
                            yield piece
                    if self.finish_reason is not None and not last:
                        await self.target.cancel(request_id)
            complete = True
            if self.finish_reason is None and not len(tree) and num_received < asked:
                # Fewer tokens than asked for and no word of why: an end token, which is never returned.
                self._end_by_end_token()
        finally:
            if not complete:
                await self.target.cancel(request_id)
