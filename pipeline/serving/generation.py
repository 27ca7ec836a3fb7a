"""One request's way through the BLS model: the decode loop of `Session`, with a Triton model as the one who verifies.

    trie, hybrid        draft here -> call the target with prefix and drafts -> text -> again
    none, lookahead     one call to the target, which decodes to the end and streams

Where nothing can be drafted the target is asked for a few tokens at once instead of paying a round trip for each.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

import numpy as np

from pipeline.decoding.request import FinishReason
from pipeline.decoding.session import GenerationStatistics, Session, StepOutcome, outcome_of_tokens
from pipeline.decoding.tree import EMPTY_TREE, DraftTree, children_of, select_nodes
from pipeline.errors import RequestError
from pipeline.serving.target import Target, TargetTraits
from pipeline.serving.tensors import Array, Tensors, integer, pack_word_list, text, token_ids
from pipeline.serving.text_codec import TextCodec
from pipeline.serving.text_request import TextRequest
from pipeline.serving.text_stream import TextStream

# Tokens asked for when there is no draft: enough to spread the cost of a call, few enough to draft again soon.
CHUNK_TOKENS = 4


@dataclass(slots=True)
class Generation:
    """State of one request. strategy: the one in effect. output_ids: the output so far, an end token included, and of a
    stop word no more than its last token. step_times: when each step's tokens came."""

    request: TextRequest
    strategy: str
    session: Session
    codec: TextCodec
    target: Target
    traits: TargetTraits
    output_ids: list[int] = field(default_factory=list)
    step_times: list[float] = field(default_factory=list)
    num_calls: int = 0
    num_calls_without_draft: int = 0
    _text: TextStream = field(init=False)
    # As the target counts them, its own drafts included; None until it has told.
    _num_draft_tokens: int | None = None
    _num_accepted_tokens: int = 0

    def __post_init__(self) -> None:
        self._text = TextStream(self.codec, self.request.stop_words)

    @property
    def finish_reason(self) -> FinishReason | None:
        return FinishReason.STOP_WORDS if self._text.stopped else self.session.finish_reason

    @property
    def num_output_tokens(self) -> int:
        """Tokens of the output without an end token, as TensorRT-LLM counts."""
        return len(self.output_ids) - (self.session.finish_reason is FinishReason.END_TOKEN and not self._text.stopped)

    @property
    def statistics(self) -> GenerationStatistics:
        statistics = self.session.statistics
        if self._num_draft_tokens is not None:
            statistics.num_draft_tokens = self._num_draft_tokens
            statistics.num_accepted_tokens = self._num_accepted_tokens
        return statistics

    async def run(self) -> AsyncGenerator[str, None]:
        """The output's text, piece by piece. Leaving the iteration early cancels the request."""
        try:
            while self.finish_reason is None:
                async with aclosing(self._call(self._propose())) as pieces:
                    async for piece in pieces:
                        yield piece
            if rest := self._text.finish():
                yield rest
        finally:
            self.session.close()

    def _propose(self) -> DraftTree:
        if self.strategy in ("none", "lookahead"):
            return EMPTY_TREE
        tree = self.session.propose()
        return tree if self.traits.trees else main_chain(tree)

    async def _call(self, tree: DraftTree) -> AsyncGenerator[str, None]:
        """One call to the target, taken in as its responses come."""
        num_asked = self._num_tokens_to_ask(tree)
        tensors = self._tensors(tree, num_asked)
        request_id = f"{self.request.generation.request_id}.{self.num_calls}"
        self.num_calls += 1
        self.num_calls_without_draft += not len(tree)
        num_received = 0
        async with aclosing(self.target.stream(tensors, self.traits.outputs, request_id)) as responses:
            async for response in responses:
                self._count_drafts(response)
                ids = token_ids(response, "output_ids").tolist()
                num_received += len(ids)
                if self._ended_by_end_token(tree, ids, response):
                    ids += self._end_token()
                if ids:
                    if piece := self._take(tree, ids):
                        yield piece
                    if self.finish_reason is not None:
                        return
        if not len(tree) and num_received < num_asked and not self.traits.extended:
            # Fewer tokens than asked for and no word of why: an end token, which is never returned.
            self._take(tree, self._end_token())
        elif not num_received:
            raise RuntimeError("the target model returned neither tokens nor a reason to end")

    def _take(self, tree: DraftTree, ids: list[int]) -> str:
        """Enter a step's tokens into the session; the text that they add."""
        outcome = outcome_of_tokens(tree, ids) if len(tree) else StepOutcome([], ids)
        emitted = self.session.advance(tree, outcome)
        self.step_times.append(time.perf_counter())
        pieces = []
        for token in emitted:
            if self._text.stopped:
                break
            self.output_ids.append(token)
            if token not in self.request.generation.end_ids:
                pieces.append(self._text.push(token))
        return "".join(pieces)

    def _ended_by_end_token(self, tree: DraftTree, ids: list[int], response: Tensors) -> bool:
        if self.traits.extended:
            reason = text(response, "finish_reason")
            if reason == FinishReason.CANCELLED.value:
                raise RequestError("the target model ended the request; the server is shutting down")
            return reason == FinishReason.END_TOKEN.value
        # A step returns the accepted path and one token more, unless that one is an end token.
        return bool(len(tree)) and len(outcome_of_tokens(tree, [*ids, -1]).nodes) == len(ids)

    def _end_token(self) -> list[int]:
        end_ids = self.request.generation.end_ids
        if not end_ids:
            raise RuntimeError("the target model ended the output without having been given an end token")
        return [_first_end_id(end_ids, self.codec)]

    def _count_drafts(self, response: Tensors) -> None:
        drafted = integer(response, "total_draft_tokens")
        if drafted is not None:
            self._num_draft_tokens = (self._num_draft_tokens or 0) + drafted
            self._num_accepted_tokens += integer(response, "total_accepted_draft_tokens") or 0

    def _num_tokens_to_ask(self, tree: DraftTree) -> int:
        remaining = self.session.num_remaining_tokens
        if len(tree):
            # Under "hybrid" the engine's own drafts may reach deeper than the tree.
            depth = max(len(tree), self.session.budget.max_depth) if self.strategy == "hybrid" else len(tree)
            return min(depth + 1, remaining)
        return remaining if self.strategy in ("none", "lookahead") else min(CHUNK_TOKENS, remaining)

    def _tensors(self, tree: DraftTree, num_asked: int) -> dict[str, Array]:
        """What `tensorrt_llm` is asked."""
        request, context = self.request.generation, self.session.context
        params = request.sampling
        num_missing = max(0, request.min_new_tokens - len(self.session.output_ids))
        tensors: dict[str, Array] = {
            "input_ids": context[None].astype(np.int32),
            "input_lengths": _int(len(context)),
            "request_output_len": _int(num_asked),
            "min_tokens": _int(min(num_missing, num_asked)),
            "exclude_input_in_output": np.asarray([[True]]),
            "return_perf_metrics": np.asarray([[True]]),
            "temperature": _float(1.0 if params.greedy else params.temperature),
            "runtime_top_k": _int(1 if params.greedy else params.top_k),
            "repetition_penalty": _float(params.repetition_penalty),
            "presence_penalty": _float(params.presence_penalty),
            "frequency_penalty": _float(params.frequency_penalty),
            "seed": np.asarray([[self._seed()]], np.uint64),
        }
        if not params.greedy:
            tensors["runtime_top_p"] = _float(params.top_p)
        if request.end_ids:
            tensors["end_id"] = _int(_first_end_id(request.end_ids, self.codec))
        if params.bad_words:
            tensors["bad_words_list"] = pack_word_list(params.bad_words)[None]
        if params.embedding_bias is not None:
            tensors["embedding_bias"] = params.embedding_bias[None]
        if len(tree):
            tensors["draft_input_ids"] = tree.token_ids[None]
        else:
            tensors["streaming"] = np.asarray([[True]])
        if self.request.lookahead is not None:
            names = ("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size")
            tensors |= {name: _int(value) for name, value in zip(names, self.request.lookahead, strict=True)}
        if self.traits.extended:
            tensors |= self._extended_tensors(tree)
        return tensors

    def _extended_tensors(self, tree: DraftTree) -> dict[str, Array]:
        # Where the trie has nothing to offer under "trie", the engine decodes plainly.
        strategy = "none" if self.strategy == "trie" and not len(tree) else self.strategy
        tensors: dict[str, Array] = {"draft_strategy": np.asarray([[strategy.encode()]], np.object_)}
        params = self.request.generation.sampling
        if params.min_p and not params.greedy:
            tensors["runtime_min_p"] = _float(params.min_p)
        if self.request.max_draft_tokens is not None:
            tensors["max_draft_tokens"] = _int(self.request.max_draft_tokens)
        if len(tree):
            tensors["draft_parents"] = tree.parents[None]
            if tree.probabilities is not None:
                tensors["draft_probabilities"] = np.clip(tree.probabilities, 0.0, 1.0)[None]
        return tensors

    def _seed(self) -> int:
        """The request's, or one per call where the target draws the same noise anew in each."""
        seed = self.request.generation.sampling.seed
        return seed if self.traits.keyed_noise else (seed + self.num_calls * 0x9E3779B97F4A7C15) % (1 << 64)


def main_chain(tree: DraftTree) -> DraftTree:
    """The most probable branch of a tree (the first one, if probabilities are unknown)."""
    children = children_of(tree)
    keep = np.zeros(len(tree), np.bool_)
    node = -1
    while below := list(children.get(node, {}).values()):
        node = below[0] if tree.probabilities is None else max(below, key=tree.probabilities.__getitem__)
        keep[node] = True
    return select_nodes(tree, keep)


def _first_end_id(end_ids: frozenset[int], codec: TextCodec) -> int:
    """The one end token that TensorRT-LLM can be told; the session sees to the others."""
    return codec.end_id if codec.end_id in end_ids else min(end_ids)


def _int(value: int) -> Array:
    return np.asarray([[value]], np.int32)


def _float(value: float) -> Array:
    return np.asarray([[value]], np.float32)
