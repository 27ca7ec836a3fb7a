"""The engine contract over the lean pass."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pipeline.decoding.compile_cache import is_complete
from pipeline.decoding.tree import BoolArray, DraftTree, ancestor_mask, depths
from pipeline.engine.contract import EngineLimits, NodeLogits, VerifyItem
from pipeline.engine.torch.lean.attention import NUM_SEGMENT_FIELDS, rows_per_task
from pipeline.engine.torch.lean.crew import Crew
from pipeline.engine.torch.lean.kv_cache import LeanCache
from pipeline.engine.torch.lean.node_logits import LeanNodeLogits, largest_entries
from pipeline.engine.torch.lean.plan import PLAN, WEIGHTS, read_plan
from pipeline.engine.torch.lean.runner import Runner
from pipeline.engine.torch.lean.warm_up import warm_up_pass
from pipeline.engine.torch.lean.weights import map_weights
from pipeline.engine.torch.slots import SlotEngine, check_item, first_row, slot_of
from pipeline.errors import BuildError


class LeanEngine(SlotEngine):
    """Implements `pipeline.engine.contract.Engine`. The bits of a row do not depend on other rows of the pass."""

    def __init__(self, folder: Path, limits: EngineLimits, num_threads: int, num_slots: int | None = None) -> None:
        """folder: output of `layout.save_lean`. num_slots: rows of the KV cache; those beyond `limits.max_batch_size`
        keep finished sequences for reuse. Raises BuildError if the engine is damaged or the KV cache does not fit into
        memory."""
        plan = read_plan(folder)
        if plan is None:
            raise BuildError(f"{folder} holds no {PLAN}; build the engine again with `lookahead engine --force`.")
        self._plan = plan
        num_slots = 2 * limits.max_batch_size if num_slots is None else num_slots
        self._cache = LeanCache(plan, num_slots, limits.max_seq_len)
        super().__init__(limits, self._cache, num_slots)
        if num_threads > 1 and not is_complete():
            warm_up_pass()  # in one thread: numba fails if several threads compile a loop at its first call
        self._runner = Runner(plan, map_weights(folder / WEIGHTS), self._cache, limits, Crew(num_threads))

    def verify(self, items: Sequence[VerifyItem]) -> list[NodeLogits | None]:
        lengths = [_num_pending(item) + len(item.tree) for item in items]
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        token_ids = np.empty(starts[-1], np.int32)
        rows = np.empty((starts[-1], 3), np.int64)
        segments: list[tuple[int, ...]] = []
        masks: list[BoolArray] = [np.zeros(0, np.bool_)]
        wanted: list[int] = []
        num_tasks = mask_place = 0
        per_task = rows_per_task(self._plan.group_size)
        for item, start, length in zip(items, starts[:-1].tolist(), lengths, strict=True):
            check_item(item, self.limits)
            slot, num_pending = slot_of(item.sequence), _num_pending(item)
            cached, tree = slot.num_cached_tokens, item.tree
            whole = slice(start, start + length)
            token_ids[start : start + num_pending] = slot.tokens[cached : cached + num_pending]
            token_ids[start + num_pending : start + length] = tree.token_ids
            rows[whole, 0] = slot.index
            rows[start : start + num_pending, 1] = np.arange(cached, cached + num_pending)
            rows[start + num_pending : start + length, 1] = cached + num_pending - 1 + depths(tree)
            rows[whole, 2] = np.arange(cached, cached + length)
            for first, count, is_chain in _parts(num_pending, tree, per_task):
                if not is_chain:
                    masks.append(_mask(count - len(tree), tree).ravel())
                segments.append((start + first, count, cached + first, slot.index, is_chain, mask_place, num_tasks))
                mask_place += 0 if is_chain else count * count
                num_tasks += -(-count // per_task) * self._plan.num_kv_heads
            is_last = num_pending == slot.num_pending
            wanted += range(start + first_row(item, num_pending, is_last), start + length)
        segments.append((*[0] * (NUM_SEGMENT_FIELDS - 1), num_tasks))
        visible = np.concatenate(masks).view(np.uint8)
        logits, maxima = self._runner.run(
            token_ids, rows, np.asarray(segments, np.int64), visible, np.asarray(wanted, np.int64)
        )
        choices = np.empty(len(logits), np.int32)
        largest_entries(logits, maxima, choices)
        results: list[NodeLogits | None] = []
        row = 0
        for item in items:
            slot, num_pending = slot_of(item.sequence), _num_pending(item)
            slot.num_cached_tokens += num_pending
            pending = None
            if item.pending_rows:
                pending = logits[row : row + num_pending, : self.limits.vocab_size]
                row += num_pending - (slot.num_pending == 0)  # the last one belongs to the root
            count = 0 if slot.num_pending else len(item.tree) + 1
            part = slice(row, row + count)
            found = LeanNodeLogits(logits[part], maxima[part], choices[part], self.limits.vocab_size, pending)
            results.append(found if count or item.pending_rows else None)
            row = part.stop
        return results

    def multiply(self, num_rows: int) -> None:
        """Compute only the matrices of a pass over `num_rows` rows, for measurements."""
        self._runner.multiply(num_rows)


def _num_pending(item: VerifyItem) -> int:
    return slot_of(item.sequence).num_pending if item.num_pending is None else item.num_pending


def _parts(num_pending: int, tree: DraftTree, per_task: int) -> list[tuple[int, int, bool]]:
    """Segments of an item: first row, number of rows, and whether they are a chain. per_task: rows per task.

    Each task of a segment with a tree reads all places of the segment, so a long prompt before a tree is a segment of
    its own."""
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
