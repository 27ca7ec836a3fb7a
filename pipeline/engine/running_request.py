"""Running requests: state of a request in a slot of the engine, and its start."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from pipeline.config.schema import SOURCE_ROWS, SuppliedDraftConfig
from pipeline.decoding.drafting.drafter import Drafter
from pipeline.decoding.log_probs import PromptLogits
from pipeline.decoding.request import GenerationRequest
from pipeline.decoding.sampling import needs_logits
from pipeline.decoding.session import Session
from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.sources.supplied import SuppliedSource
from pipeline.decoding.sources.window import WindowSource
from pipeline.decoding.strategy import source_names
from pipeline.engine.contract import Engine, EngineSequence
from pipeline.engine.submission import OnEvent, StepEvent, Submission
from pipeline.engine.waiting_queue import WaitingRequest

SUPPLIED = SuppliedDraftConfig().kind
# Sources that draft from text. Drafts of the BLS model come from the same text.
TEXT_KINDS = frozenset(kind for kind, row in SOURCE_ROWS.items() if row.role == "text")


@dataclass(slots=True, eq=False)
class RunningRequest:
    """A request in a slot. continues: whether it is a continuation. names: its draft sources. drafts: whether it drafts
    in the next step. prompt: logits after the prompt tokens computed so far, if requested."""

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
    prompt: PromptLogits = field(default_factory=lambda: PromptLogits([], []))

    @property
    def request(self) -> GenerationRequest:
        """The request with its end tokens, which may be those of its guide."""
        return self.session.request

    @property
    def has_supplied(self) -> bool:
        """Whether drafts that came with the request are verified in the next step."""
        return self.num_steps == 0 and len(self.submission.supplied) > 0

    @property
    def num_top(self) -> int:
        """Number of the most probable tokens after each node that the draft sources learn from in the next step."""
        return self.top_k if self.drafts else 0

    @property
    def wants_prompt_rows(self) -> bool:
        """Whether the next pass returns the logits after the prompt tokens that it computes."""
        return self.num_steps == 0 and self.submission.wanted.of_prompt

    def is_decoding(self, max_draft_tokens: int) -> bool:
        """Whether the prompt is computed. A step leaves at most its drafts and one token pending, so a continuation
        with more pending tokens has lost the KV cache of earlier steps."""
        return self.num_steps > 0 or (self.continues and self.sequence.num_pending <= max_draft_tokens + 1)

    def last_event(self, error: Exception | None = None) -> StepEvent:
        """The event of an end without further tokens. error: the reason, unless it was cancelled."""
        return StepEvent(self.request.request_id, [], self.session.statistics, None, error)


def by_urgency(running: Sequence[RunningRequest], max_draft_tokens: int) -> list[RunningRequest]:
    """Sort sequences by their priority in a pass: first those that decode, then the oldest prefill, then the other
    prefills by length. So no prefill starves, and long prompts do not delay short ones."""
    decoding: list[RunningRequest] = []
    prefilling: list[RunningRequest] = []
    for each in running:
        (decoding if each.is_decoding(max_draft_tokens) else prefilling).append(each)
    return decoding + prefilling[:1] + sorted(prefilling[1:], key=lambda each: each.sequence.num_pending)


def start_request(
    entry: WaitingRequest, engine: Engine, drafter: Drafter, default_budget: DraftBudget
) -> RunningRequest:
    """Claim a slot in the engine and start the draft sources. default_budget: of requests without a budget. Raises
    RequestError if the request's guide cannot be used. After an error the slot is free again."""
    submission, request, limits = entry.submission, entry.submission.request, engine.limits
    matcher = entry.matcher.result() if entry.matcher is not None else None
    if matcher is not None:
        request = replace(request, end_ids=matcher.end_ids)  # a request without end tokens gets the vocabulary's
    names = source_names(submission.strategy, drafter.names, submission.lookahead is not None)
    if submission.only_supplied:
        names &= {SUPPLIED}
    sources = [source for source in drafter.sources if source.name in names]
    supplied = next((source for source in sources if isinstance(source, SuppliedSource)), None)
    window = next((source for source in sources if isinstance(source, WindowSource)), None)
    budget = submission.budget or default_budget
    nodes = budget.max_nodes
    if window is not None and nodes > 0:  # a window is verified whole or not at all, with the pool's candidates
        nodes = max(nodes, (submission.lookahead or window.limits).max_draft_len)
    budget = DraftBudget(min(nodes, limits.max_draft_tokens), budget.max_depth)
    with ExitStack() as stack:
        sequence = engine.open(request.prompt_ids, reuse=submission.reuse and not submission.wanted.of_prompt)
        stack.callback(engine.release, sequence)
        skip_forced = not submission.wanted.of_output
        session = Session(request, drafter, names, budget, limits.max_seq_len, matcher, skip_forced, keyed_noise=True)
        stack.callback(session.close)
        session.statistics.num_reused_tokens = sequence.num_reused_tokens
        if supplied is not None:
            supplied.supply(request.request_id, submission.supplied)
            if len(submission.supplied):
                drafter.leave_out(request.request_id, TEXT_KINDS)
        if window is not None and submission.lookahead is not None:
            window.configure(request.request_id, submission.lookahead)
        top_k = drafter.needs_top_k(request.request_id) if names else 0
        stack.pop_all()
    logits = needs_logits(request)
    return RunningRequest(submission, entry.on_event, entry.continues, session, sequence, logits, top_k, names)
