"""Counts the verify steps of known outputs with a draft source, without a model.

Greedy decoding gives the same tokens with and without drafts, so a known output determines which drafts are accepted.
Sources that learn from the target's candidates get the recorded rows (see `recorded_rows`). Without rows token
recycling and the lookahead window learn nothing.

Step 1 is the prefill and yields one token without a draft. Every later step drafts after the accepted text, and accepts
the longest path that agrees with the output, and one more token. Regimes:

    cold        no state from other requests
    warm        learned state is kept over the rows of one dataset, in file order
    prewarmed   cold, but after all other rows of the same dataset were learned
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from lookahead_research.known_outputs import ALL_TASKS, ReplayRow
from pipeline.config.schema import SOURCE_ROWS, LookaheadConfig, PromptDraftConfig, TrieDraftConfig, kinds_for
from pipeline.decoding.drafting.drafter import Drafter
from pipeline.decoding.drafting.drafter_factory import create_drafter
from pipeline.decoding.drafting.first_rows import NO_FIRST_ROWS, FirstRows
from pipeline.decoding.request import StepResult
from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.sources.supplied import SuppliedSource
from pipeline.decoding.tree import EMPTY_TREE, DraftTree, IntArray, agreeing_path
from pipeline.errors import UserError

REGIMES = ("cold", "warm", "prewarmed")
# Replay uses only the pool of the lookahead window, so the source is named pool here.
_POOL = "pool"
_KINDS = {_POOL if kind == "window" else kind: kind for kind, row in SOURCE_ROWS.items() if row.replayable}
SOURCES = tuple(_KINDS)
# Upper bound: rows of the target may contain any token.
ANY_VOCABULARY = 1 << 30
TRIE = TrieDraftConfig()
HYBRID = tuple(sorted(kinds_for("hybrid", _KINDS.values())))


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """One row of the result. retrieval_us_p50, retrieval_us_p99: percentiles of the time of one proposal."""

    budget: int
    regime: str
    task: str
    source: str
    tokens: int
    steps: int
    mean_acceptance_length: float
    draft_tokens_per_step: float
    retrieval_us_p50: float
    retrieval_us_p99: float


@dataclass(slots=True)
class _Tally:
    tokens: int = 0
    steps: int = 0
    draft_tokens: int = 0
    proposal_seconds: list[float] = field(default_factory=list)

    def add(self, other: _Tally) -> None:
        self.tokens += other.tokens
        self.steps += other.steps
        self.draft_tokens += other.draft_tokens
        self.proposal_seconds += other.proposal_seconds

    def result(self, budget: int, regime: str, task: str, source: str) -> ReplayResult:
        times = np.asarray(self.proposal_seconds or [0.0]) * 1e6
        return ReplayResult(
            budget=budget,
            regime=regime,
            task=task,
            source=source,
            tokens=self.tokens,
            steps=self.steps,
            mean_acceptance_length=self.tokens / self.steps,
            draft_tokens_per_step=self.draft_tokens / max(len(self.proposal_seconds), 1),
            retrieval_us_p50=float(np.percentile(times, 50)),
            retrieval_us_p99=float(np.percentile(times, 99)),
        )


def replay(
    rows: Sequence[ReplayRow],
    source: str,
    budgets: Sequence[int],
    regimes: Sequence[str],
    trie: TrieDraftConfig = TRIE,
    on_row: Callable[[], None] = lambda: None,
    max_draft_len: int | None = None,
    first_rows: FirstRows = NO_FIRST_ROWS,
) -> list[ReplayResult]:
    """Return one result per budget, regime and task, and after the tasks one of all tasks.

    source: names of `SOURCES` joined by "+", or "hybrid". trie: settings of the source trie. on_row: called after every
    row. max_draft_len: longest drafted path, None for the trie's branch length. first_rows: initial rows of token
    recycling. Raises UserError for an unknown name."""
    create = partial(_drafter, source_parts(source), trie, first_rows)
    results: list[ReplayResult] = []
    for budget in budgets:
        for regime in regimes:
            tallies: dict[str, _Tally] = {}
            for row, tally in _replayed(rows, create, DraftBudget(budget, max_draft_len or trie.branch_length), regime):
                tallies.setdefault(row.task, _Tally()).add(tally)
                on_row()
            total = _Tally()
            for task, tally in tallies.items():
                results.append(tally.result(budget, regime, task, source))
                total.add(tally)
            results.append(total.result(budget, regime, ALL_TASKS, source))
    return results


def source_parts(source: str) -> tuple[str, ...]:
    """The sources in an argument of --source. Raises UserError for an unknown source, or one that occurs twice."""
    parts = HYBRID if source == "hybrid" else tuple(source.split("+"))
    for part in parts:
        if part not in SOURCES:
            raise UserError(
                f"--source is {source!r}; it must be hybrid, or one or more (joined by +) of {', '.join(SOURCES)}."
            )
    if len(set(parts)) != len(parts):
        raise UserError(f"--source {source!r} names one source twice; name each once.")
    return parts


def _replayed(
    rows: Sequence[ReplayRow], create: Callable[[], Drafter], budget: DraftBudget, regime: str
) -> Iterator[tuple[ReplayRow, _Tally]]:
    by_dataset: dict[str, list[ReplayRow]] = {}
    for row in rows:
        by_dataset.setdefault(row.dataset, []).append(row)
    for members in by_dataset.values():
        drafter = create()
        for index, row in enumerate(members):
            if regime != "warm" and index:
                drafter = create()
            if regime == "prewarmed":
                for other in (*members[:index], *members[index + 1 :]):
                    _learn_output(drafter, other)
            yield row, _replay_one(drafter, row, budget)


def _drafter(names: Sequence[str], trie: TrieDraftConfig, first_rows: FirstRows) -> Drafter:
    # Without a model the window gets no choices, so it has one column and no levels, and the pool learns from the
    # prompt and the accepted text. N as in the paper's small setting, G so large that it is no limit.
    lookahead = LookaheadConfig.of(1, 5, 16)
    configs: dict[str, Any] = {
        **{kind: row.config() for kind, row in SOURCE_ROWS.items() if row.replayable},
        "trie": trie,
        "prompt": PromptDraftConfig(branch_length=trie.branch_length),
    }
    drafter = create_drafter([configs[_KINDS[name]] for name in names], lookahead, ANY_VOCABULARY)
    drafter.begin_with(first_rows)
    return drafter


def _replay_one(drafter: Drafter, row: ReplayRow, budget: DraftBudget) -> _Tally:
    text, start = row.text, len(row.prompt_ids)
    request_id = "replay"
    _start(drafter, row, request_id)
    if row.prediction_ids is not None:
        for source in drafter.sources:
            if isinstance(source, SuppliedSource):
                source.predict(request_id, row.prediction_ids)
    tally = _Tally(tokens=len(row.output_ids))
    position = start
    while position < len(text):
        tree = EMPTY_TREE
        # The first step is the prefill, without drafts. Drafts may extend beyond the known end.
        if position > start:
            started = time.perf_counter()
            tree = drafter.propose(request_id, text[:position], budget)
            tally.proposal_seconds.append(time.perf_counter() - started)
        nodes = agreeing_path(tree, text[position:].tolist())
        # After a path down to the last token, the target's next token is unknown.
        emitted = text[position : position + len(nodes) + 1].tolist()
        drafter.update(request_id, _step(drafter, request_id, row, text[:position], tree, nodes, emitted))
        position += len(emitted)
        tally.steps += 1
        tally.draft_tokens += len(tree)
    drafter.stop(request_id)
    drafter.require_sound()  # a failed source proposes no drafts, so the counts would be wrong
    return tally


def _step(
    drafter: Drafter,
    request_id: str,
    row: ReplayRow,
    context: IntArray,
    tree: DraftTree,
    nodes: list[int],
    emitted: list[int],
) -> StepResult:
    candidates = None
    if row.target is not None and (k := drafter.needs_top_k(request_id)):
        candidates = row.target.candidates(len(context), tree, k)
    return StepResult(context, tree, nodes, emitted, None, *(candidates or (None, None)))


def _learn_output(drafter: Drafter, row: ReplayRow) -> None:
    """Let the sources learn an output as if it had been served, token by token. With drafts the result would be the
    same for several times the work."""
    text = row.text
    _start(drafter, row, "earlier")
    for position in range(len(row.prompt_ids), len(text)):
        emitted = [int(text[position])]
        drafter.update("earlier", _step(drafter, "earlier", row, text[:position], EMPTY_TREE, [], emitted))
    drafter.stop("earlier")


def _start(drafter: Drafter, row: ReplayRow, request_id: str) -> None:
    drafter.start(request_id, row.prompt_ids, "", frozenset(source.name for source in drafter.sources))
