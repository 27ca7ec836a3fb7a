"""Lookahead parallelism's gain in steps, simulated on one machine (arXiv 2402.02057, section on lookahead parallelism).

With n ranks the window and the candidates grow n times, and each rank verifies its part of the tree. Outputs and steps
do not depend on the rank that verifies a node, so one engine computes all nodes. Only the number of tokens that the
busiest rank would compute is derived from the split.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lookahead_research.experiments import OnRow, Row, by_lookahead_sizes
from lookahead_research.known_outputs import ReplayRow
from pipeline.config.schema import LookaheadConfig
from pipeline.decoding.split import split_tree
from pipeline.decoding.tree import IntArray
from pipeline.engine.contract import Engine, EngineLimits, EngineSequence, NodeLogits, ReuseCounters, VerifyItem


class SplitCounter:
    """Implements `pipeline.engine.contract.Engine` over another engine, and counts the tokens of the busiest rank."""

    def __init__(self, engine: Engine, num_ranks: int) -> None:
        self.num_passes = self.num_tokens = self.num_rank_tokens = 0
        self._engine = engine
        self._num_ranks = num_ranks

    @property
    def limits(self) -> EngineLimits:
        return self._engine.limits

    def open(self, token_ids: IntArray, reuse: bool = True) -> EngineSequence:
        return self._engine.open(token_ids, reuse)

    def verify(self, items: Sequence[VerifyItem]) -> list[NodeLogits | None]:
        for item in items:
            if len(item.tree):  # every rank computes whole prompts
                self.num_passes += 1
                self.num_tokens += 1 + len(item.tree)
                self.num_rank_tokens += 1 + max(map(len, split_tree(item.tree, self._num_ranks)))
        return self._engine.verify(items)

    def commit(self, sequence: EngineSequence, nodes: Sequence[int], token_ids: Sequence[int]) -> None:
        self._engine.commit(sequence, nodes, token_ids)

    def release(self, sequence: EngineSequence) -> None:
        self._engine.release(sequence)

    def forget_cached(self) -> None:
        self._engine.forget_cached()

    @property
    def reuse(self) -> ReuseCounters:
        return self._engine.reuse


def by_ranks(
    rows: Sequence[ReplayRow],
    engine: Engine,
    one: LookaheadConfig,
    ranks: Sequence[int],
    prefill_chunk: int,
    on_row: OnRow,
) -> Iterator[Row]:
    """Yield a row for each number of ranks, the largest first. one: W, N, G of a single rank. In a row, tokens_per_step
    and tokens_per_rank count the tokens computed per step by all ranks and by the busiest one. Raises UserError for a
    tree that the engine cannot verify in one step."""
    scaled = [
        LookaheadConfig.of(
            one.max_window_size * num_ranks, one.max_ngram_size, one.max_verification_set_size * num_ranks
        )
        for num_ranks in ranks
    ]
    for num_ranks, lookahead in sorted(zip(ranks, scaled, strict=True), key=lambda pair: -pair[0]):
        counter = SplitCounter(engine, num_ranks)
        (row,) = by_lookahead_sizes(rows, counter, [lookahead], prefill_chunk, on_row)
        yield {
            "ranks": num_ranks,
            **row,
            "tokens_per_step": counter.num_tokens / max(counter.num_passes, 1),
            "tokens_per_rank": counter.num_rank_tokens / max(counter.num_passes, 1),
        }
