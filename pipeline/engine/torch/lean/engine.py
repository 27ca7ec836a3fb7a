"""The engine contract over the lean pass."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pipeline.decoding.compile_cache import is_complete
from pipeline.decoding.tree import BoolArray, DraftTree, IntArray, ancestor_mask
from pipeline.engine.contract import EngineLimits
from pipeline.engine.torch.lean import tables
from pipeline.engine.torch.lean.attention import NUM_SEGMENT_FIELDS, rows_per_task
from pipeline.engine.torch.lean.crew import Crew
from pipeline.engine.torch.lean.kv_cache import LeanCache
from pipeline.engine.torch.lean.node_logits import LeanLogits
from pipeline.engine.torch.lean.plan import WEIGHTS, LeanPlan
from pipeline.engine.torch.lean.runner import Runner
from pipeline.engine.torch.lean.warm_up import warm_up_pass
from pipeline.engine.torch.lean.weights import map_weights
from pipeline.engine.torch.slots import Segment, SlotEngine


class LeanEngine(SlotEngine):
    """Implements `pipeline.engine.contract.Engine`. The bits of a row do not depend on other rows of the pass."""

    def __init__(self, folder: Path, plan: LeanPlan, limits: EngineLimits, num_threads: int) -> None:
        """folder: output of `layout.save_lean`. plan: from its file. Raises BuildError if the engine is damaged or the
        KV cache does not fit into memory."""
        self._plan = plan
        num_slots = 2 * limits.max_batch_size  # half of them keep finished sequences for reuse
        self._cache = LeanCache(plan, num_slots, limits.max_seq_len)
        super().__init__(limits, self._cache, num_slots)
        if num_threads > 1 and not is_complete():
            warm_up_pass()  # in one thread: numba fails if several threads compile a loop at its first call
        self._runner = Runner(plan, map_weights(folder / WEIGHTS), self._cache, limits, Crew(num_threads))

    def _compute(self, segments: Sequence[Segment], wanted: IntArray) -> LeanLogits:
        rows = np.empty((sum(each.length for each in segments), 3), np.int64)
        table: list[tuple[int, ...]] = []
        masks: list[BoolArray] = [np.zeros(0, np.bool_)]
        num_tasks = mask_place = 0
        per_task = rows_per_task(self._plan.group_size)
        for each in segments:
            own = rows[each.start : each.start + each.length]
            own[:, tables.ROW_SLOT], own[:, tables.ROW_POSITION] = each.slot.index, each.positions
            own[:, tables.ROW_PLACE] = np.arange(each.cached, each.cached + each.length)
            for first, count, is_chain in _parts(each.num_pending, each.tree, per_task):
                if not is_chain:
                    masks.append(_mask(count - len(each.tree), each.tree).ravel())
                start, cached = each.start + first, each.cached + first
                table.append((start, count, cached, each.slot.index, is_chain, mask_place, num_tasks))
                mask_place += 0 if is_chain else count * count
                num_tasks += -(-count // per_task) * self._plan.num_kv_heads
        table.append((*[0] * (NUM_SEGMENT_FIELDS - 1), num_tasks))
        logits, maxima = self._runner.run(
            np.concatenate([each.token_ids for each in segments]),
            rows,
            np.asarray(table, np.int64),
            np.concatenate(masks).view(np.uint8),
            wanted.astype(np.int64),
        )
        return LeanLogits(logits, maxima, self.limits.vocab_size)

    def multiply(self, num_rows: int) -> None:
        """Compute only the matrices of a pass over `num_rows` rows, for measurements."""
        self._runner.multiply(num_rows)


def _parts(num_pending: int, tree: DraftTree, per_task: int) -> list[tuple[int, int, bool]]:
    """Parts of a segment for attention: first row, number of rows, and whether they are a chain. per_task: rows per
    task.

    Each task of a part with a tree reads all places of the part, so a long prompt before a tree is a part of its
    own."""
    is_chain = tree.parents.tolist() == list(range(-1, len(tree) - 1))
    if is_chain or num_pending <= per_task:
        return [(0, num_pending + len(tree), is_chain)]
    return [(0, num_pending, True), (num_pending, len(tree), False)]


def _mask(num_pending: int, tree: DraftTree) -> BoolArray:
    """[rows, rows] True where a row attends: each row to itself and to pending tokens before it, nodes also to their
    ancestors."""
    mask = np.tri(num_pending + len(tree), dtype=np.bool_)
    mask[num_pending:, num_pending:] = ancestor_mask(tree)
    return mask
