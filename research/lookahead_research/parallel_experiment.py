"""Lookahead parallelism's gain in steps, simulated on one machine (arXiv 2402.02057, section on lookahead parallelism).

With n ranks the window and the candidates grow n times, and each rank verifies its part of the tree. What comes out and
in how many steps does not depend on where a node is verified, so one engine computes it all; only the split is worked
out, which says how many tokens the busiest rank would have computed.
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
    """An engine that also counts what each of several ranks would compute. See `pipeline.engine.contract.Engine`."""

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
            if len(item.tree):  # a prompt is computed by every rank alike
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
    """Steps for each number of ranks, the largest first; `one` is the step of a single rank. tokens_per_step,
    tokens_per_rank: computed in a step by all, and by the busiest rank. Raises UserError for a tree that the engine
    cannot verify in one step."""
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
