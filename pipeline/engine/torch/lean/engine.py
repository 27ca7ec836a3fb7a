"""The engine contract over the lean pass."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pipeline.decoding.compile_cache import is_complete
from pipeline.decoding.tree import DraftTree, IntArray, ancestor_mask
from pipeline.engine.contract import EngineLimits
from pipeline.engine.memory import slots_for
from pipeline.engine.torch.lean import tables
from pipeline.engine.torch.lean.attention import NUM_SEGMENT_FIELDS, max_task_rows, task_rows
from pipeline.engine.torch.lean.crew import Crew
from pipeline.engine.torch.lean.kv_cache import LeanCache
from pipeline.engine.torch.lean.node_logits import LeanLogits
from pipeline.engine.torch.lean.plan import WEIGHTS, LeanPlan
from pipeline.engine.torch.lean.runner import Runner
from pipeline.engine.torch.lean.tables import Floats
from pipeline.engine.torch.lean.vectors import LANES
from pipeline.engine.torch.lean.warm_up import warm_up_pass
from pipeline.engine.torch.lean.weights import map_weights
from pipeline.engine.torch.slots import Segment, SlotEngine


class LeanEngine(SlotEngine):
    """Implements `pipeline.engine.contract.Engine`. The bits of a row do not depend on other rows of the pass."""

    def __init__(self, folder: Path, plan: LeanPlan, limits: EngineLimits, num_threads: int) -> None:
        """folder: output of `layout.save_lean`. plan: from its file. Raises BuildError if the engine is damaged or the
        KV cache does not fit into memory."""
        self._plan, self._num_threads = plan, num_threads
        num_slots = slots_for(limits.max_batch_size)
        self._cache = LeanCache(plan, num_slots, limits.max_seq_len)
        super().__init__(limits, self._cache, num_slots)
        if num_threads > 1 and not is_complete():
            warm_up_pass()  # in one thread: numba fails if several threads compile a loop at its first call
        self._runner = Runner(plan, map_weights(folder / WEIGHTS), self._cache, limits, Crew(num_threads))

    def _compute(self, segments: Sequence[Segment], wanted: IntArray) -> LeanLogits:
        rows = np.empty((sum(each.length for each in segments), 3), np.int64)
        table: list[tuple[int, ...]] = []
        masks: list[Floats] = [np.zeros(0, np.float32)]
        num_tasks = mask_place = 0
        group, num_kv_heads = self._plan.group_size, self._plan.num_kv_heads
        for each in segments:
            own = rows[each.start : each.start + each.length]
            own[:, tables.ROW_SLOT], own[:, tables.ROW_POSITION] = each.slot.index, each.positions
            own[:, tables.ROW_PLACE] = np.arange(each.cached, each.cached + each.length)
            for first, count, is_chain in _parts(each.num_pending, each.tree, max_task_rows(group)):
                start, cached, width = each.start + first, each.cached + first, 0
                if not is_chain:
                    mask = _mask(count - len(each.tree), each.tree, cached % LANES)
                    masks.append(mask.ravel())
                    width = mask.shape[1]
                size = task_rows(count, group, num_kv_heads, self._num_threads)
                table.append((start, count, cached, each.slot.index, is_chain, mask_place, width, size, num_tasks))
                mask_place += count * width
                num_tasks += -(-count // size) * num_kv_heads
        table.append((*[0] * (NUM_SEGMENT_FIELDS - 1), num_tasks))
        logits, maxima = self._runner.run(
            np.concatenate([each.token_ids for each in segments]),
            rows,
            np.asarray(table, np.int64),
            np.concatenate(masks),
            wanted.astype(np.int64),
        )
        return LeanLogits(logits, maxima, self.limits.vocab_size)

    def multiply(self, num_rows: int) -> None:
        """Compute only the matrices of a pass over `num_rows` rows, for measurements."""
        self._runner.multiply(num_rows)


def _parts(num_pending: int, tree: DraftTree, max_rows: int) -> list[tuple[int, int, bool]]:
    """Parts of a segment for attention: first row, number of rows, and whether they are a chain. max_rows: most rows
    of a task.

    Each task of a part with a tree reads all places of the part, so a long prompt before a tree is a part of its
    own."""
    is_chain = tree.parents.tolist() == list(range(-1, len(tree) - 1))
    if is_chain or num_pending <= max_rows:
        return [(0, num_pending + len(tree), is_chain)]
    return [(0, num_pending, True), (num_pending, len(tree), False)]


def _mask(num_pending: int, tree: DraftTree, skipped: int) -> Floats:
    """[rows, columns] 0 where a row attends, else -inf. Each row attends to itself and to pending tokens before it,
    nodes also to their ancestors. skipped: columns for cached places, which come first. Columns are padded to 16."""
    count = num_pending + len(tree)
    visible = np.tri(count, dtype=np.bool_)
    visible[num_pending:, num_pending:] = ancestor_mask(tree)
    mask = np.full((count, -(-(skipped + count) // LANES) * LANES), -np.inf, np.float32)
    mask[:, :skipped] = 0
    mask[:, skipped : skipped + count][visible] = 0
    return mask
