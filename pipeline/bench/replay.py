"""Replay: how many verify steps known outputs would have taken with a draft source, counted without a model.

Greedy decoding gives the same tokens with and without drafts, so an output that is known already says which drafts
would have been accepted. Only sources that need more than tokens see less than in a live run: token recycling learns
from the accepted positions at most (where a row carries their top candidates), the lookahead window from none.

Step 1 is the prefill, one token without a draft. Every later step asks for a draft behind the accepted text, accepts
the longest path that agrees with the output and one more token. Regimes:

    cold        nothing known from other requests
    warm        what is learnt is kept over the rows of one dataset, in file order
    prewarmed   cold, but after the outputs of all other rows of the same dataset were taken in
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from pipeline.config.schema import (
    LookaheadConfig,
    PromptDraftConfig,
    RecyclingDraftConfig,
    SourceConfig,
    SuppliedDraftConfig,
    TrieDraftConfig,
    WindowDraftConfig,
)
from pipeline.decoding.drafter import Drafter
from pipeline.decoding.request import StepResult
from pipeline.decoding.sources import create_source
from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.sources.supplied import SuppliedSource
from pipeline.decoding.tree import EMPTY_TREE, DraftTree, FloatArray, IntArray, chain, children_of
from pipeline.errors import UserError

Regime = Literal["cold", "warm", "prewarmed"]
REGIMES: tuple[Regime, ...] = get_args(Regime)
ALL_TASKS = "all"
HYBRID = ("trie", "recycling", "pool", "supplied")
SOURCES = ("trie", "prompt", "pool", "recycling", "supplied")


@dataclass(frozen=True, slots=True)
class ReplayRow:
    """One known output. top_ids, top_probs: [output_len, k] the target's candidates for each output token, or None.
    prediction_ids: what a client would have predicted, or None."""

    dataset: str
    task: str
    prompt_ids: IntArray
    output_ids: IntArray
    top_ids: IntArray | None = None
    top_probs: FloatArray | None = None
    prediction_ids: IntArray | None = None

    def token_arrays(self) -> list[IntArray]:
        """All arrays of token ids that it has."""
        arrays = (self.prompt_ids, self.output_ids, self.top_ids, self.prediction_ids)
        return [ids for ids in arrays if ids is not None and ids.size]


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """One row of the result. retrieval_us: time of one ask for a draft."""

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
    ask_seconds: list[float] = field(default_factory=list)

    def add(self, other: _Tally) -> None:
        self.tokens += other.tokens
        self.steps += other.steps
        self.draft_tokens += other.draft_tokens
        self.ask_seconds += other.ask_seconds

    def result(self, budget: int, regime: str, task: str, source: str) -> ReplayResult:
        times = np.asarray(self.ask_seconds or [0.0]) * 1e6
        return ReplayResult(
            budget=budget,
            regime=regime,
            task=task,
            source=source,
            tokens=self.tokens,
            steps=self.steps,
            mean_acceptance_length=self.tokens / self.steps,
            draft_tokens_per_step=self.draft_tokens / max(len(self.ask_seconds), 1),
            retrieval_us_p50=float(np.percentile(times, 50)),
            retrieval_us_p99=float(np.percentile(times, 99)),
        )


def load_replay_rows(path: Path) -> list[ReplayRow]:
    """Rows of a JSON Lines file of known outputs, or of what `lookahead bench --json` wrote (the rows of strategy
    "none", or of its first strategy). Raises UserError, saying which row, if something is missing or is no token
    list."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}. Give a file of known outputs.") from error
    values = _bench_rows(text, path)
    if values is None:
        values = []
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                try:
                    values.append((f"line {number}", json.loads(line)))
                except json.JSONDecodeError as error:
                    raise UserError(f"{path}, line {number}: no JSON ({error}).") from error
    rows = [_replay_row(value, f"{path}, {where}") for where, value in values]
    if not rows:
        raise UserError(f"{path} holds no outputs; give rows with prompt_ids and output_ids.")
    return rows


def replay(
    rows: Sequence[ReplayRow],
    source: str,
    budgets: Sequence[int],
    regimes: Sequence[str],
    branch_length: int = 12,
    on_row: Callable[[], None] | None = None,
) -> list[ReplayResult]:
    """Results per budget, regime and task, each followed by that of all tasks. source: names of `SOURCES` joined by
    "+", or "hybrid". on_row: called after every row replayed. Raises UserError if a name or a number makes no sense."""
    names = source_parts(source)
    for regime in regimes:
        if regime not in REGIMES:
            raise UserError(f"regime is {regime!r}; it must be one of {', '.join(REGIMES)}")
    for budget in budgets:
        if budget < 1:
            raise UserError(f"budget is {budget}; a draft needs at least one node")
    vocab_size = 1 + max(
        int(ids.max(initial=0))
        for row in rows
        for ids in (row.prompt_ids, row.output_ids, row.top_ids)
        if ids is not None
    )
    results: list[ReplayResult] = []
    for budget in budgets:
        for regime in regimes:
            tallies: dict[str, _Tally] = {}
            for row, tally in _replayed(rows, names, DraftBudget(budget, branch_length), regime, vocab_size):
                tallies.setdefault(row.task, _Tally()).add(tally)
                if on_row is not None:
                    on_row()
            total = _Tally()
            for task, tally in tallies.items():
                results.append(tally.result(budget, regime, task, source))
                total.add(tally)
            results.append(total.result(budget, regime, ALL_TASKS, source))
    return results


def source_parts(source: str) -> tuple[str, ...]:
    """The sources that a word of the command line stands for."""
    parts = HYBRID if source == "hybrid" else tuple("pool" if part == "window" else part for part in source.split("+"))
    for part in parts:
        if part not in SOURCES:
            raise UserError(
                f"source is {part!r}; it must be hybrid, or one or more (joined by +) of {', '.join(SOURCES)}"
            )
    return parts


def result_rows(results: Sequence[ReplayResult]) -> list[dict[str, Any]]:
    """The rows as they are written to JSON."""
    return [asdict(result) for result in results]


def _replayed(
    rows: Sequence[ReplayRow], names: Sequence[str], budget: DraftBudget, regime: str, vocab_size: int
) -> Iterator[tuple[ReplayRow, _Tally]]:
    by_dataset: dict[str, list[ReplayRow]] = {}
    for row in rows:
        by_dataset.setdefault(row.dataset, []).append(row)
    for members in by_dataset.values():
        drafter = _drafter(names, vocab_size, budget)
        for index, row in enumerate(members):
            if regime != "warm" and index:
                drafter = _drafter(names, vocab_size, budget)
            if regime == "prewarmed":
                for other in (*members[:index], *members[index + 1 :]):
                    _take_in(drafter, other)
            yield row, _replay_one(drafter, row, budget)


def _drafter(names: Sequence[str], vocab_size: int, budget: DraftBudget) -> Drafter:
    branch_length = budget.max_depth
    # Without a model nobody tells what follows the window's guesses, so it is left at one column and no level: the pool
    # lives from the prompt and the accepted text. N and G as in the paper's small setting, G wide enough to be no
    # limit.
    lookahead = LookaheadConfig(max_window_size=1, max_ngram_size=5, max_verification_set_size=16)
    configs: dict[str, SourceConfig] = {
        "trie": TrieDraftConfig(branch_length=branch_length),
        "prompt": PromptDraftConfig(branch_length=branch_length),
        "pool": WindowDraftConfig(),
        "recycling": RecyclingDraftConfig(),
        "supplied": SuppliedDraftConfig(),
    }
    return Drafter([create_source(configs[name], lookahead) for name in names], vocab_size)


def _replay_one(drafter: Drafter, row: ReplayRow, budget: DraftBudget) -> _Tally:
    """Steps of one output."""
    text = np.concatenate((row.prompt_ids, row.output_ids))
    start = len(row.prompt_ids)
    request_id = "replay"
    drafter.start(request_id, row.prompt_ids, "", frozenset(source.name for source in drafter.sources))
    if row.prediction_ids is not None:
        for source in drafter.sources:
            if isinstance(source, SuppliedSource):
                source.predict(request_id, row.prediction_ids)
    tally = _Tally(tokens=len(row.output_ids))
    position = start
    while position < len(text):
        tree = EMPTY_TREE
        depth = min(budget.max_depth, len(text) - position - 1)
        # The first step is the prefill.
        if position > start and depth > 0:
            asked = time.perf_counter()
            tree = drafter.propose(request_id, text[:position], DraftBudget(budget.max_nodes, depth))
            tally.ask_seconds.append(time.perf_counter() - asked)
        nodes = _agreeing_path(tree, text[position:])
        emitted = text[position : position + len(nodes) + 1].tolist()
        drafter.update(request_id, _step(row, text, position, tree, nodes, emitted))
        position += len(emitted)
        tally.steps += 1
        tally.draft_tokens += len(tree)
    drafter.stop(request_id)
    return tally


def _agreeing_path(tree: DraftTree, future: IntArray) -> list[int]:
    """Nodes of the longest path from the root that carries the tokens of `future`, which ends with the output."""
    children = children_of(tree)
    nodes: list[int] = []
    for token in future[:-1].tolist():
        child = children.get(nodes[-1] if nodes else -1, {}).get(token)
        if child is None:
            break
        nodes.append(child)
    return nodes


def _step(
    row: ReplayRow, text: IntArray, position: int, tree: DraftTree, nodes: list[int], emitted: list[int]
) -> StepResult:
    top_ids, top_probs = None, None
    if row.top_ids is not None and row.top_probs is not None:
        # What followed the rejected nodes is not known.
        known = np.asarray([0, *(node + 1 for node in nodes)])
        offset = position - len(row.prompt_ids)
        top_ids = np.full((len(tree) + 1, row.top_ids.shape[1]), -1, np.int32)
        top_probs = np.zeros(top_ids.shape, np.float32)
        top_ids[known] = row.top_ids[offset : offset + len(known)]
        top_probs[known] = row.top_probs[offset : offset + len(known)]
    return StepResult(text[:position], tree, nodes, emitted, None, top_ids, top_probs)


def _take_in(drafter: Drafter, row: ReplayRow) -> None:
    """Let the sources learn an output as if it had been generated in one step behind its own first token."""
    first, rest = row.output_ids[:1], row.output_ids[1:]
    if not len(rest):
        return
    drafter.start("earlier", first, "", frozenset(source.name for source in drafter.sources))
    tree = chain(rest[:-1].tolist())
    behind_first = ReplayRow(row.dataset, row.task, first, rest, *_after_first(row))
    drafter.update("earlier", _step(behind_first, row.output_ids, 1, tree, list(range(len(tree))), rest.tolist()))
    drafter.stop("earlier")


def _after_first(row: ReplayRow) -> tuple[IntArray | None, FloatArray | None]:
    if row.top_ids is None or row.top_probs is None:
        return None, None
    return row.top_ids[1:], row.top_probs[1:]


def _bench_rows(text: str, path: Path) -> list[tuple[str, Any]] | None:
    """The requests of a bench file, or None if the text is no such file."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return None
    if not isinstance(value, dict) or "requests" not in value:
        return None
    requests = value["requests"]
    if not isinstance(requests, list) or not all(isinstance(request, dict) for request in requests):
        raise UserError(f"{path}: requests must be a list of objects, as `lookahead bench --json` writes them.")
    strategies = [request.get("strategy") for request in requests]
    chosen = "none" if "none" in strategies else next(iter(strategies), None)
    # A bench may have run its workload more than once.
    return [
        (f"request {number}", request)
        for number, request in enumerate(requests, 1)
        if request.get("strategy") == chosen and not request.get("repeat")
    ]


def _replay_row(value: Any, where: str) -> ReplayRow:
    if not isinstance(value, dict):
        raise UserError(
            f"{where}: a row must be an object with prompt_ids and output_ids, found {type(value).__name__}."
        )
    prompt_ids, output_ids = (_token_ids(value, key, where) for key in ("prompt_ids", "output_ids"))
    top_ids, top_probs = None, None
    top_k = value.get("topk")
    if top_k is not None:
        try:
            top_ids = np.asarray(top_k["top_ids"], np.int32)
            top_probs = np.asarray(top_k["top_probs"], np.float32)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{where}: topk must hold the lists top_ids and top_probs ({error!r}).") from error
        if top_ids.ndim != 2 or top_ids.shape != top_probs.shape or len(top_ids) != len(output_ids):
            raise UserError(
                f"{where}: topk needs {len(output_ids)} lists of one length in top_ids and in top_probs, one per "
                f"output token; found shapes {top_ids.shape} and {top_probs.shape}."
            )
    return ReplayRow(
        dataset=str(value.get("dataset", "")),
        task=str(value.get("task", value.get("category", "task"))),
        prompt_ids=prompt_ids,
        output_ids=output_ids,
        top_ids=top_ids,
        top_probs=top_probs,
        prediction_ids=_token_ids(value, "prediction_ids", where) if "prediction_ids" in value else None,
    )


def _token_ids(value: dict[str, Any], key: str, where: str) -> IntArray:
    ids = value.get(key)
    if not isinstance(ids, list) or not ids or not all(type(token) is int and 0 <= token < 1 << 31 for token in ids):
        raise UserError(f"{where}: {key} must be a list of one or more token ids.")
    return np.asarray(ids, np.int32)
