"""The slot KV cache of the lean pass. For the order of keys and values see `attention`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.engine.memory import available_bytes
from pipeline.engine.torch.lean import tables
from pipeline.engine.torch.lean.cache_entries import Entries, move_places
from pipeline.engine.torch.lean.plan import LeanPlan, cache_entry_bytes
from pipeline.engine.torch.lean.tables import aligned
from pipeline.engine.torch.lean.vectors import LANES, padded
from pipeline.engine.torch.slots import require_cache_memory

# Padding after each block of values, in places. Without it blocks begin at multiples of a power of two, and the same
# place of all blocks competes for the same few entries of a CPU cache. Only the first place of the padding is written.
_UNUSED_PLACES = 17 * LANES


class LeanCache:
    """keys [layer, slot, kv_head, places / 16, dim / n, 16], values [layer, slot, kv_head, dim / 16, (places + unused)
    / n, 16, n]; n is 1 for float32 and 2 for bfloat16, dim is head_dim padded to 16. The system allocates pages at
    their first write. table: `cache` of `tables`."""

    def __init__(self, plan: LeanPlan, num_slots: int, max_seq_len: int) -> None:
        """Raises BuildError if the machine has not enough memory."""
        blocks, dim = -(-max_seq_len // LANES), padded(plan.head_dim)
        shape = (plan.num_layers, num_slots, plan.num_kv_heads)
        size = cache_entry_bytes(plan.kind)
        kinds: tuple[Any, Any] = (np.float32, np.float32) if size == 4 else (np.uint32, np.uint16)
        self._per_pair = 4 // size
        self.num_bytes = 2 * size * int(np.prod(shape)) * blocks * LANES * dim
        require_cache_memory(self.num_bytes, available_bytes(), num_slots, max_seq_len, "cpu")
        self.keys: Entries = aligned((*shape, blocks, dim // self._per_pair, LANES), kinds[0])
        places = (blocks * LANES + _UNUSED_PLACES) // self._per_pair
        self.values: Entries = aligned((*shape, dim // LANES, places, LANES, self._per_pair), kinds[1])
        self.table = np.zeros((2, tables.NUM_CACHE_FIELDS), np.int64)
        for row, array in ((tables.KEYS, self.keys), (tables.VALUES, self.values)):
            self.table[row] = array.ctypes.data, size, *array.strides[:4]

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        blocks, pairs = -(-length // LANES), -(-length // self._per_pair)
        self.keys[:, target, :, :blocks] = self.keys[:, source, :, :blocks]
        self.values[:, target, :, :, :pairs] = self.values[:, source, :, :, :pairs]

    def move_path(self, slot: int, start: int, nodes: Sequence[int]) -> None:
        move_places(self.keys, self.values, slot, start, np.asarray(nodes, np.int64))
