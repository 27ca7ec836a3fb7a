"""Running requests: state of a request in a slot of the engine, and its start."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from pipeline.config.schema import SOURCE_ROWS, SuppliedDraftConfig
from pipeline.decoding.drafter import Drafter
from pipeline.decoding.sampling import needs_logits
from pipeline.decoding.session import Session
from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.sources.supplied import SuppliedSource
from pipeline.decoding.sources.window import WindowSource
from pipeline.decoding.strategy import source_names
from pipeline.decoding.tree import FloatArray
from pipeline.engine.contract import Engine, EngineSequence
from pipeline.engine.submission import OnEvent, StepEvent, Submission
from pipeline.engine.waiting_queue import Waiting

SUPPLIED = SuppliedDraftConfig().kind
# Sources that draft from text. Drafts of the BLS model come from the same text.
TEXT_KINDS = frozenset(kind for kind, row in SOURCE_ROWS.items() if row.role == "text")


@dataclass(slots=True, eq=False)
class Running:
    """A request in a slot. continues: whether it is a continuation. names: its draft sources. drafts: whether it drafts
    in the next step. prompt_rows: logits after the prompt tokens computed so far, if requested."""

    submission: Submission
    on_event: OnEvent
    continues: bool
    session: Session
    sequence: EngineSequence
    needs_logits: bool
    top_k: int
    names: frozenset[str] = frozenset()
    drafts: bool = False
    num_steps: int = 0
    prompt_rows: list[FloatArray] = field(default_factory=list)

    @property
    def has_supplied(self) -> bool:
        """Whether drafts that came with the request are verified in the next step."""
        return self.num_steps == 0 and len(self.submission.supplied) > 0

    @property
    def wants_prompt_rows(self) -> bool:
        """Whether the next pass returns the logits after the prompt tokens that it computes."""
        return self.num_steps == 0 and self.submission.wanted.of_prompt

    def is_decoding(self, max_draft_tokens: int) -> bool:
        """Whether the prompt is computed. A step leaves at most its drafts and one token pending, so a continuation
        with more pending tokens has lost the KV cache of earlier steps."""
        return self.num_steps > 0 or (self.continues and len(self.sequence.pending) <= max_draft_tokens + 1)

    def last_event(self, error: Exception | None = None) -> StepEvent:
        """The event of an end without further tokens. error: the reason, unless it was cancelled."""
        return StepEvent(self.submission.request.request_id, [], self.session.statistics, None, error)


def by_urgency(running: Sequence[Running], max_draft_tokens: int) -> list[Running]:
    """Sort sequences by their priority in a pass: first those that decode, then the oldest prefill, then the other
    prefills by length. So no prefill starves, and long prompts do not delay short ones."""
    decoding = [each for each in running if each.is_decoding(max_draft_tokens)]
    prefilling = [each for each in running if not each.is_decoding(max_draft_tokens)]
    return decoding + prefilling[:1] + sorted(prefilling[1:], key=lambda each: len(each.sequence.pending))


class Starter:
    """Starts requests on one engine with one drafter."""

    def __init__(self, engine: Engine, drafter: Drafter, default_budget: DraftBudget) -> None:
        """default_budget: of requests without a budget."""
        self._engine = engine
        self._drafter = drafter
        self._default_budget = default_budget
        self._supplied = next((source for source in drafter.sources if isinstance(source, SuppliedSource)), None)
        self._window = next((source for source in drafter.sources if isinstance(source, WindowSource)), None)

    def start(self, entry: Waiting) -> Running:
        """Claim a slot in the engine and start the draft sources. Raises RequestError if the request's guide cannot be
        used. After an error the slot is free again."""
        submission, request, limits = entry.submission, entry.submission.request, self._engine.limits
        matcher = entry.matcher.result() if entry.matcher is not None else None
        if matcher is not None and request.end_ids != matcher.end_ids:
            request = replace(request, end_ids=matcher.end_ids)  # the grammar's own end token if there was none
            submission = replace(submission, request=request)
        names = source_names(submission.strategy, self._drafter.names, submission.lookahead is not None)
        if submission.only_supplied:
            names &= {SUPPLIED}
        budget = self._budget(submission, names)
        with ExitStack() as stack:
            sequence = self._engine.open(request.prompt_ids, reuse=submission.reuse and not submission.wanted.of_prompt)
            stack.callback(self._engine.release, sequence)
            skip_forced = not submission.wanted.of_output
            session = Session(request, self._drafter, names, budget, limits.max_seq_len, matcher, skip_forced)
            stack.callback(session.close)
            session.statistics.num_reused_tokens = sequence.num_reused_tokens
            if self._supplied is not None and self._supplied.name in names:
                self._supplied.supply(request.request_id, submission.supplied)
                if len(submission.supplied):
                    self._drafter.leave_out(request.request_id, TEXT_KINDS)
            if self._window is not None and self._window.name in names and submission.lookahead is not None:
                self._window.configure(request.request_id, submission.lookahead)
            top_k = self._drafter.needs_top_k(request.request_id) if names else 0
            stack.pop_all()
        logits = needs_logits(request)
        return Running(submission, entry.on_event, entry.continues, session, sequence, logits, top_k, names)

    def _budget(self, submission: Submission, names: frozenset[str]) -> DraftBudget:
        """Number of drafts per step: those of the submission, and at least the nodes of its window and pool
        candidates, because a window is verified whole or not at all."""
        budget = submission.budget or self._default_budget
        nodes = budget.max_nodes
        if self._window is not None and self._window.name in names and nodes > 0:
            nodes = max(nodes, (submission.lookahead or self._window.limits).max_draft_len)
        return DraftBudget(min(nodes, self._engine.limits.max_draft_tokens), budget.max_depth)
