"""The slot KV cache of the lean pass. A vector of keys holds one entry of 16 places (see `attention`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.engine.memory import available_bytes
from pipeline.engine.torch.lean import tables
from pipeline.engine.torch.lean.cache_entries import Entries, move_places
from pipeline.engine.torch.lean.memory import aligned
from pipeline.engine.torch.lean.plan import LeanPlan, cache_entry_bytes
from pipeline.engine.torch.lean.vectors import LANES
from pipeline.engine.torch.slots import require_cache_memory

# Places after the last one of a block of values. Without them blocks begin at multiples of a power of two, and the same
# place of all blocks competes for the same few entries of a CPU cache. Their memory is never written.
_UNUSED_PLACES = 17 * LANES


class LeanCache:
    """keys [layer, slot, kv_head, places / 16, dim, 16], values [layer, slot, kv_head, dim / 16, places + unused, 16];
    dim is head_dim padded to 16. The system allocates pages at their first write. table: `cache` of `tables`."""

    def __init__(self, plan: LeanPlan, num_slots: int, max_seq_len: int) -> None:
        """Raises BuildError if the machine has not enough memory."""
        blocks, dim = -(-max_seq_len // LANES), -(-plan.head_dim // LANES) * LANES
        shape = (plan.num_layers, num_slots, plan.num_kv_heads)
        size = cache_entry_bytes(plan.kind)
        kind: Any = np.float32 if size == 4 else np.uint16
        self.num_bytes = 2 * size * int(np.prod(shape)) * blocks * LANES * dim
        require_cache_memory(self.num_bytes, available_bytes(), num_slots, max_seq_len, "cpu")
        self.keys: Entries = aligned((*shape, blocks, dim, LANES), kind)
        self.values: Entries = aligned((*shape, dim // LANES, blocks * LANES + _UNUSED_PLACES, LANES), kind)
        self.table = np.zeros((2, tables.NUM_CACHE_FIELDS), np.int64)
        for row, array in ((tables.KEYS, self.keys), (tables.VALUES, self.values)):
            self.table[row] = array.ctypes.data, array.itemsize, *array.strides[:4]

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        blocks = -(-length // LANES)
        self.keys[:, target, :, :blocks] = self.keys[:, source, :, :blocks]
        self.values[:, target, :, :, :length] = self.values[:, source, :, :, :length]

    def move_path(self, slot: int, start: int, nodes: Sequence[int]) -> None:
        move_places(self.keys, self.values, slot, start, np.asarray(nodes, np.int64))
