"""The experiments of the two papers on known outputs: gain of drafts against their cost.

The experiments on the trie (arXiv 2312.12728, figures on decoding length, branch length and memory) need no model. The
experiments on lookahead decoding (arXiv 2402.02057, step compression against FLOPs per step, and lookahead parallelism)
run the engine, because the window needs the target's choices after its guesses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args

from lookahead_research.known_outputs import ALL_TASKS, ReplayRow
from lookahead_research.replay import replay
from pipeline.config.schema import LookaheadConfig, Retrieval, TrieDraftConfig, WindowDraftConfig
from pipeline.decoding.drafting.drafter import Drafter
from pipeline.decoding.planning.planner import FixedPlanner, PlanItem
from pipeline.decoding.request import GenerationRequest
from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.sources.window import WindowSource
from pipeline.decoding.split import split_tree
from pipeline.decoding.tree import DraftTree
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
    """Warm acceptance length for the three retrieval strategies and for each of the lengths. name: their meaning,
    "decoding_length" (draft tokens per step) or "branch_length" (longest drafted path). decoding_length: for the
    latter."""
    results: list[Row] = []
    for retrieval in RETRIEVALS:
        for length in lengths:
            if name == "branch_length":
                budget, config = decoding_length, TrieDraftConfig(retrieval=retrieval, branch_length=length)
            else:
                budget, config = length, TrieDraftConfig(retrieval=retrieval)
            found = _acceptance_length(rows, budget, config, on_row)
            results.append({"retrieval": retrieval, name: length, "acceptance_length": found})
    return results


def by_capacity(rows: Sequence[ReplayRow], capacities: Sequence[int], decoding_length: int, on_row: OnRow) -> list[Row]:
    """Content of a trie after all texts were inserted, and warm acceptance length, for each limit in bytes."""
    results: list[Row] = []
    for max_bytes in capacities:
        config = TrieDraftConfig(max_bytes=max_bytes)
        trie = Trie(config.branch_length, max_bytes)
        for row in rows:
            trie.insert(row.text)
        held = trie.statistics
        results.append(
            {
                "max_bytes": max_bytes,
                "tokens_inserted": sum(len(row.text) for row in rows),
                "tokens_held": held.num_tokens,
                "nodes": held.num_nodes,
                "used_bytes": held.used_bytes,
                "acceptance_length": _acceptance_length(rows, decoding_length, config, on_row),
            }
        )
    return results


def require_fit(sizes: Sequence[LookaheadConfig], engine: Engine) -> None:
    """Raise UserError for sizes that the engine cannot verify in one step."""
    limit = engine.limits.max_draft_tokens
    for lookahead in sizes:
        if (drafts := lookahead.max_draft_len) > limit:
            w, n, g = lookahead.sizes
            raise UserError(
                f"W, N, G = {w}, {n}, {g} drafts {drafts} tokens per step; the engine verifies at most {limit}. Leave "
                f"it out, or build with --set engine.max_draft_tokens={drafts}."
            )


def by_lookahead_sizes(
    rows: Sequence[ReplayRow], engine: Engine, sizes: Sequence[LookaheadConfig], prefill_chunk: int, on_row: OnRow
) -> Iterator[Row]:
    """Generate all outputs with lookahead decoding for each (W, N, G). Yields the number of steps, the FLOPs of a step,
    and the number of outputs that equal the known ones. Raises UserError as `require_fit` does."""
    require_fit(sizes, engine)
    for lookahead in sizes:
        yield _generate(rows, engine, lookahead, FixedPlanner(), prefill_chunk, on_row)


class SplitPlanner(FixedPlanner):
    """Counts the tokens that all ranks compute, and those of the busiest rank, in steps with drafts."""

    def __init__(self, num_ranks: int) -> None:
        self.num_steps = self.num_tokens = self.num_rank_tokens = 0
        self._num_ranks = num_ranks

    def plan(self, items: Sequence[PlanItem], max_num_tokens: int) -> list[DraftTree]:
        trees = super().plan(items, max_num_tokens)
        for tree in filter(len, trees):  # every rank computes whole prompts
            self.num_steps += 1
            self.num_tokens += 1 + len(tree)
            self.num_rank_tokens += 1 + max(map(len, split_tree(tree, self._num_ranks)))
        return trees


def by_ranks(
    rows: Sequence[ReplayRow],
    engine: Engine,
    one: LookaheadConfig,
    ranks: Sequence[int],
    prefill_chunk: int,
    on_row: OnRow,
) -> Iterator[Row]:
    """Simulate lookahead parallelism on one machine: with n ranks the window and the candidates grow n times, and each
    rank verifies its part of the tree. Outputs and steps do not depend on the rank that verifies a node, so one engine
    computes all. one: W, N, G of a single rank. Yields a row for each number of ranks, with the tokens computed per
    step by all ranks and by the busiest one. Raises UserError as `require_fit` does."""
    w, n, g = one.sizes
    scaled = [LookaheadConfig.of(w * num_ranks, n, g * num_ranks) for num_ranks in ranks]
    require_fit(scaled, engine)
    for num_ranks, lookahead in zip(ranks, scaled, strict=True):
        planner = SplitPlanner(num_ranks)
        row = _generate(rows, engine, lookahead, planner, prefill_chunk, on_row)
        yield {
            "ranks": num_ranks,
            **row,
            "tokens_per_step": planner.num_tokens / max(planner.num_steps, 1),
            "tokens_per_rank": planner.num_rank_tokens / max(planner.num_steps, 1),
        }


def _generate(
    rows: Sequence[ReplayRow],
    engine: Engine,
    lookahead: LookaheadConfig,
    planner: FixedPlanner,
    prefill_chunk: int,
    on_row: OnRow,
) -> Row:
    """Generate all outputs with lookahead decoding, and compare them with the known ones."""
    w, n, g = lookahead.sizes
    scheduler = Scheduler(
        engine,
        Drafter([WindowSource(WindowDraftConfig(), lookahead)], engine.limits.vocab_size),
        planner,
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
    return {
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
    results = replay(rows, "trie", [budget], ["warm"], trie, on_row)
    return next(result.mean_acceptance_length for result in results if result.task == ALL_TASKS)
