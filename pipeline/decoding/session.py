"""The decode loop of one request, without the model and without I/O.

Every target drives a session in the same way: the torch engine in process, either engine behind a Triton call, a lookup
table in a test. So tests, measurements and the server run the same loop:

    while not session.finished:
        tree = session.propose()
        outcome = <target verifies tree after session.context>
        emitted = session.advance(tree, outcome) + session.advance_certain()
    session.close()
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pipeline.decoding.drafting.drafter import Drafter
from pipeline.decoding.noise import NO_NOISE, NoiseKey
from pipeline.decoding.request import FinishReason, GenerationRequest, StepResult
from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.tree import EMPTY_TREE, DraftTree, FloatArray, IntArray, agreeing_path

if TYPE_CHECKING:  # the BLS model has sessions and no grammar library
    from pipeline.decoding.grammar.matcher import Matcher

# Name of the source for tokens that a grammar forces.
GRAMMAR = "grammar"
# Highest temperature whose noise the drafts follow, that of OpenAI's API. Outputs at higher ones are random, and would
# change the learned weights of all requests.
HOTTEST_FOLLOWED = 2.0


class StepOutcome(NamedTuple):
    """Result of verifying a tree; see `StepResult` for the fields. top_k: function that computes top_ids and top_probs,
    if the target returns them. num_steps: number of passes: above 1 if a target without drafts computed several tokens
    in one call, 0 for tokens that needed no pass."""

    nodes: list[int]
    token_ids: list[int]
    choices: IntArray | None = None
    top_k: Callable[[], tuple[IntArray, FloatArray]] | None = None
    num_steps: int = 1


@dataclass(slots=True)
class GenerationStatistics:
    """Counts and times of one request. The prefill counts as a step, because it yields the first token.

    num_drafted_steps: steps with at least one draft token. accepted_by_source: accepted draft tokens by the source with
    the highest estimate. num_forced_tokens: tokens that the grammar forced without a pass. mask_seconds: time of the
    grammar's masks, mostly in parallel to the target's passes. guide_seconds: time of cutting and extending drafts by
    the grammar."""

    num_steps: int = 0
    num_drafted_steps: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_by_source: Counter[str] = field(default_factory=Counter)
    num_reused_tokens: int = 0
    acceptance_lengths: list[int] = field(default_factory=list)
    draft_seconds: float = 0.0
    num_forced_tokens: int = 0
    mask_seconds: float = 0.0
    guide_seconds: float = 0.0
    time_to_first_token_s: float = 0.0
    total_seconds: float = 0.0

    @property
    def mean_acceptance_length(self) -> float:
        return sum(self.acceptance_lengths) / self.num_steps if self.num_steps else 0.0


class Session:
    """State of one request. Not thread safe."""

    def __init__(
        self,
        request: GenerationRequest,
        drafter: Drafter,
        names: frozenset[str],
        budget: DraftBudget,
        max_seq_len: int,
        matcher: Matcher | None = None,
        skip_forced: bool = True,
        keyed_noise: bool = False,
    ) -> None:
        """names: the draft sources that take part. max_seq_len: limit of prompt, output and drafts together. matcher:
        the matcher of the request's guide, if this session applies it. skip_forced: emit tokens that the grammar forces
        without a pass, and so without log probabilities; without draft sources every token takes a pass. keyed_noise:
        whether the target's noise depends on seed and position as in `sampling`, so that drafts can follow it."""
        self.request = request
        self.budget = budget
        self.statistics = GenerationStatistics()
        self.finish_reason: FinishReason | None = None
        # Without sources, calls to the drafter would only take time.
        self._drafter = drafter if names else None
        self.matcher = matcher
        self._skips_forced = skip_forced and bool(names)
        self._max_seq_len = max_seq_len
        self._len = len(request.prompt_ids)
        self._prompt_len = self._len - request.num_resumed_tokens
        self._tokens = np.empty(min(self._prompt_len + request.max_new_tokens, max_seq_len), np.int32)
        self._tokens[: self._len] = request.prompt_ids
        self._longest_stop = max(map(len, request.stop_sequences), default=0)
        self._started_at = time.perf_counter()
        # Steps that the draft sources have not learned from: context length, tree, outcome, tokens kept.
        self._unlearned: list[tuple[int, DraftTree, StepOutcome, list[int]]] = []
        self._reported_seconds = 0.0
        if self._drafter is not None:
            noise = NO_NOISE
            sampling = request.sampling
            if keyed_noise and not sampling.greedy and sampling.temperature <= HOTTEST_FOLLOWED:
                noise = NoiseKey(np.uint64(sampling.seed), float(sampling.temperature))
            self._drafter.start(request.request_id, self.context, request.namespace, names, noise)

    @property
    def context(self) -> IntArray:
        """[len] prompt and output so far, as a view."""
        return self._tokens[: self._len]

    @property
    def output_ids(self) -> list[int]:
        """Tokens generated so far, including resumed ones and an end token."""
        ids: list[int] = self._tokens[self._prompt_len : self._len].tolist()
        return ids

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def num_remaining_tokens(self) -> int:
        """Tokens that may still be generated, by max_new_tokens and max_seq_len."""
        return len(self._tokens) - self._len

    def context_with(self, emitted: Sequence[int]) -> IntArray:
        """[len + emitted] the context extended by emitted tokens."""
        return np.concatenate([self.context, np.asarray(emitted, np.int32)]) if emitted else self.context

    def propose(self, least_probability: float = 0.0) -> DraftTree:
        """Return the draft tree of the next step. least_probability: see `DraftBudget`."""
        self.learn()
        nodes = min(self.budget.max_nodes, self._max_seq_len - self._len)
        # The target adds one token of its own to the accepted ones.
        depth = min(self.budget.max_depth, self.num_remaining_tokens - 1)
        if self._drafter is None or nodes <= 0 or depth <= 0:
            return EMPTY_TREE
        budget = DraftBudget(nodes, depth, least_probability)
        started = time.perf_counter()
        tree = self._drafter.propose(self.request.request_id, self.context, budget)
        drafted = time.perf_counter()
        self.statistics.draft_seconds += drafted - started
        if self.matcher is not None:
            tree = self.matcher.guided(tree, nodes, depth)
            self.statistics.guide_seconds += time.perf_counter() - drafted
        return tree

    def take_draft_seconds(self) -> float:
        """Time of drafting, learning included, since the last call."""
        before, self._reported_seconds = self._reported_seconds, self.statistics.draft_seconds
        return self._reported_seconds - before

    def advance(self, tree: DraftTree, outcome: StepOutcome) -> list[int]:
        """Run `take`, then `learn`. Returns the tokens of `take`."""
        kept = self.take(tree, outcome)
        self.learn()
        return kept

    def take(self, tree: DraftTree, outcome: StepOutcome) -> list[int]:
        """Apply the result of a step. Returns the tokens that belong to the output and, at its end, sets
        `finish_reason`. Raises RequestError if the grammar does not permit them. The draft sources learn from the step
        at the next `learn` or `propose`."""
        kept = self._keep(outcome.token_ids)
        before, self._len = self._len, self._len + len(kept)
        self._tokens[before : self._len] = kept
        self._count(tree, outcome, len(kept))
        if self.matcher is not None:
            self.matcher.consume(kept)
        if self._drafter is not None:
            self._remember(before, tree, outcome, kept)
        return kept

    def _remember(self, before: int, tree: DraftTree, outcome: StepOutcome, kept: list[int]) -> None:
        """Keep a step until the draft sources learn from it. Steps in a row without drafts and candidates become one,
        so that learning from many takes about as long as from one."""
        if self._unlearned and not len(tree) and outcome.top_k is None:
            first, last_tree, last_outcome, tokens = self._unlearned[-1]
            if not len(last_tree) and last_outcome.top_k is None:
                self._unlearned[-1] = first, tree, outcome, tokens + kept
                return
        self._unlearned.append((before, tree, outcome, kept))

    def advance_certain(self) -> list[int]:
        """Emit and return the tokens that need no pass, because the grammar permits no others: the end token of a
        complete output and, with `skip_forced`, all forced tokens."""
        if self.matcher is None or self.finished:
            return []
        if self._skips_forced or self.matcher.is_complete:
            tokens = self.matcher.forced(self.num_remaining_tokens)
            self.statistics.num_forced_tokens += len(tokens)
            return self.take(EMPTY_TREE, StepOutcome([], tokens, num_steps=0)) if tokens else []
        return []

    def learn(self) -> None:
        """Pass the results of the steps taken to the draft sources. After the last step, close the session."""
        if self._drafter is None or not self._unlearned:
            return
        started = time.perf_counter()
        unlearned, self._unlearned = self._unlearned, []
        for before, tree, outcome, kept in unlearned:
            top_ids, top_probs = (None, None) if outcome.top_k is None else outcome.top_k()
            step = StepResult(self._tokens[:before], tree, outcome.nodes, kept, outcome.choices, top_ids, top_probs)
            self._drafter.update(self.request.request_id, step)
        if self.finished:
            self.close()
        self.statistics.draft_seconds += time.perf_counter() - started

    def cancel(self) -> None:
        """End the request now."""
        if not self.finished:
            self.finish_reason = FinishReason.CANCELLED
        self.close()

    def close(self) -> None:
        """Stop the request in the draft sources. Calling it again does nothing, because another request may then have
        the id."""
        try:
            self.learn()
        finally:
            drafter, self._drafter = self._drafter, None
            if drafter is not None:
                drafter.stop(self.request.request_id)

    def _keep(self, token_ids: Sequence[int]) -> list[int]:
        """The tokens up to the end of the output, if the end is among them."""
        kept: list[int] = []
        for token in token_ids:
            kept.append(token)
            self.finish_reason = self.end_after(kept)
            if self.finished:
                break
        return kept

    def end_after(self, emitted: Sequence[int]) -> FinishReason | None:
        """Why the output ends with the last of the tokens that a step emits, if it does."""
        if not emitted:
            return None
        if emitted[-1] in self.request.end_ids:
            return FinishReason.END_TOKEN
        if self._ends_with_stop_sequence(emitted):
            return FinishReason.STOP_WORDS
        return FinishReason.LENGTH if len(emitted) >= self.num_remaining_tokens else None

    def _ends_with_stop_sequence(self, emitted: Sequence[int]) -> bool:
        start = max(self._prompt_len, self._len - self._longest_stop)
        tail = (*self._tokens[start : self._len].tolist(), *emitted)
        return any(tail[-len(stop) :] == stop for stop in self.request.stop_sequences)

    def _count(self, tree: DraftTree, outcome: StepOutcome, num_kept: int) -> None:
        statistics = self.statistics
        if statistics.num_steps == 0:
            statistics.time_to_first_token_s = time.perf_counter() - self._started_at
        statistics.total_seconds = time.perf_counter() - self._started_at
        statistics.num_steps += outcome.num_steps
        statistics.num_drafted_steps += len(tree) > 0
        statistics.num_draft_tokens += len(tree)
        accepted = outcome.nodes[:num_kept]
        statistics.num_accepted_tokens += len(accepted)
        if accepted and self._drafter is not None and tree.sources is not None:
            names = (*self._drafter.names, GRAMMAR)  # nodes that the grammar added have source -1
            for node in accepted:
                statistics.accepted_by_source[names[tree.sources[node]]] += 1
        if outcome.num_steps:
            # Of several steps only the total is known, so all get about the same length.
            least, more = divmod(num_kept, outcome.num_steps)
            statistics.acceptance_lengths.extend(least + (step < more) for step in range(outcome.num_steps))


def outcome_of_tokens(tree: DraftTree, token_ids: Sequence[int], num_steps: int = 1) -> StepOutcome:
    """The outcome for a target that reports only its tokens: the accepted path is the one that carries them."""
    return StepOutcome(agreeing_path(tree, token_ids[:-1]), list(token_ids), num_steps=num_steps)
