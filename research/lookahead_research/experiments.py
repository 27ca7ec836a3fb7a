"""The experiments of the two papers on known outputs: gain of drafts against their cost.

Those of the trie (arXiv 2312.12728, figures on decoding and branch length, and on memory) need no model. Those of
lookahead decoding (arXiv 2402.02057, step compression against the arithmetic of a step) run the engine, because only
the target gives the tokens after the window's guesses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args

import numpy as np

from lookahead_research.known_outputs import ALL_TASKS, ReplayRow
from lookahead_research.replay import replay
from pipeline.config.schema import LookaheadConfig, Retrieval, TrieDraftConfig, WindowDraftConfig
from pipeline.decoding.drafter import Drafter
from pipeline.decoding.planner import FixedPlanner
from pipeline.decoding.request import GenerationRequest
from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.sources.window import WindowSource
from pipeline.decoding.trie import Trie
from pipeline.engine.contract import Engine
from pipeline.engine.scheduler import Scheduler
from pipeline.engine.submission import Submission
from pipeline.errors import UserError

RETRIEVALS: tuple[Retrieval, ...] = get_args(Retrieval)

Row = dict[str, Any]
OnRow = Callable[[], None]


def by_length(
    rows: Sequence[ReplayRow], name: str, lengths: Sequence[int], decoding_length: int, on_row: OnRow
) -> list[Row]:
    """Acceptance length, warm, for the three retrieval strategies, against decoding_length (draft tokens per step) or
    branch_length (longest drafted path). name: which of the two takes the `lengths`."""
    results: list[Row] = []
    for retrieval in RETRIEVALS:
        for length in lengths:
            config = TrieDraftConfig(retrieval=retrieval)
            if name == "branch_length":
                config = TrieDraftConfig(retrieval=retrieval, branch_length=length)
            budget = length if name == "decoding_length" else decoding_length
            found = _acceptance_length(rows, budget, config, on_row)
            results.append({"retrieval": retrieval, name: length, "acceptance_length": found})
    return results


def by_capacity(rows: Sequence[ReplayRow], capacities: Sequence[int], decoding_length: int, on_row: OnRow) -> list[Row]:
    """Content of a trie with a byte limit after all texts were inserted, and the warm acceptance length with it."""
    results: list[Row] = []
    for max_bytes in capacities:
        config = TrieDraftConfig(max_bytes=max_bytes)
        trie = Trie(config.branch_length, max_bytes)
        for row in rows:
            trie.insert(np.concatenate((row.prompt_ids, row.output_ids)))
        held = trie.statistics
        results.append(
            {
                "max_bytes": max_bytes,
                "tokens_inserted": sum(len(row.prompt_ids) + len(row.output_ids) for row in rows),
                "tokens_held": held.num_tokens,
                "nodes": held.num_nodes,
                "used_bytes": held.used_bytes,
                "acceptance_length": _acceptance_length(rows, decoding_length, config, on_row),
            }
        )
    return results


def require_fit(sizes: Sequence[LookaheadConfig], engine: Engine) -> None:
    """Raises UserError for sizes that the engine cannot verify in one step."""
    limit = engine.limits.max_draft_tokens
    for lookahead in sizes:
        w, n, g = (lookahead.max_window_size, lookahead.max_ngram_size, lookahead.max_verification_set_size)
        if (drafts := lookahead.max_draft_len) > limit:
            raise UserError(
                f"W, N, G = {w}, {n}, {g} drafts {drafts} tokens per step; the engine verifies at most {limit}. "
                f"Leave it out, or build with --set engine.max_draft_tokens={drafts}."
            )


def by_lookahead_sizes(
    rows: Sequence[ReplayRow], engine: Engine, sizes: Sequence[LookaheadConfig], prefill_chunk: int, on_row: OnRow
) -> Iterator[Row]:
    """Steps that lookahead decoding takes on the engine for each (W, N, G), against the arithmetic of a step. The
    outputs are generated anew; how many are the known ones is counted. Raises UserError as `require_fit` does."""
    require_fit(sizes, engine)
    for lookahead in sizes:
        w, n, g = (lookahead.max_window_size, lookahead.max_ngram_size, lookahead.max_verification_set_size)
        drafter = Drafter([WindowSource(WindowDraftConfig(), lookahead)], engine.limits.vocab_size)
        scheduler = Scheduler(
            engine,
            drafter,
            FixedPlanner(),
            default_budget=DraftBudget(lookahead.max_draft_len, max(n - 1, 1)),
            max_queue_size=1,
            prefill_chunk=prefill_chunk,
        )
        tokens = steps = identical = 0
        for index, row in enumerate(rows):
            request = GenerationRequest(f"{index}", row.prompt_ids, max_new_tokens=len(row.output_ids))
            (result,) = scheduler.run([Submission(request, "lookahead")])
            tokens += len(result.output_ids)
            steps += result.statistics.num_steps
            identical += result.output_ids == row.output_ids.tolist()
            on_row()
        yield {
            "max_window_size": w,
            "max_ngram_size": n,
            "max_verification_set_size": g,
            "flops_multiple": lookahead.max_draft_len + 1,  # tokens that a step computes; plain decoding computes one
            "tokens": tokens,
            "steps": steps,
            "step_compression": tokens / steps,
            "identical": identical,
            "outputs": len(rows),
        }


def _acceptance_length(rows: Sequence[ReplayRow], budget: int, trie: TrieDraftConfig, on_row: OnRow) -> float:
    results = replay(rows, "trie", [budget], ["warm"], trie.branch_length, on_row, trie)
    return next(result.mean_acceptance_length for result in results if result.task == ALL_TASKS)
