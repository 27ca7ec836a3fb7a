"""The slot KV cache of the lean pass. For the order of keys and values see `attention`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.engine.memory import available_bytes, require_cache_memory
from pipeline.engine.torch.lean import tables
from pipeline.engine.torch.lean.cache_entries import Entries, move_places
from pipeline.engine.torch.lean.int16_rows import max_integers
from pipeline.engine.torch.lean.plan import LeanPlan, cache_head_bytes
from pipeline.engine.torch.lean.tables import Floats, aligned
from pipeline.engine.torch.lean.vectors import LANES, padded

# Padding after each block of values, in places. Without it blocks begin at multiples of a power of two, and the same
# place of all blocks competes for the same few entries of a CPU cache. The padding is never written.
_UNUSED_PLACES = 17 * LANES


class LeanCache:
    """keys [layer, slot, kv_head, places / 16, dim / n, 16], values [layer, slot, kv_head, dim / 16, (places + unused)
    / n, 16, n]; n is 1 for float32 and 2 for int16, dim is head_dim padded to 16. scales [2, layer, slot, kv_head,
    places], without places for float32. The system allocates pages at their first write. table: `cache` of `tables`."""

    def __init__(self, plan: LeanPlan, num_slots: int, max_seq_len: int) -> None:
        """Raises BuildError if the machine has not enough memory."""
        blocks, dim = -(-max_seq_len // LANES), padded(plan.head_dim)
        shape = (plan.num_layers, num_slots, plan.num_kv_heads)
        is_float = plan.kind == "float32"
        kinds: tuple[Any, Any] = (np.float32, np.float32) if is_float else (np.int32, np.int16)
        self._per_pair = 1 if is_float else 2
        num_bytes = 2 * int(np.prod(shape)) * blocks * LANES * cache_head_bytes(plan.kind, dim)
        require_cache_memory(num_bytes, available_bytes(), num_slots, max_seq_len, "cpu")
        self.keys: Entries = aligned((*shape, blocks, dim // self._per_pair, LANES), kinds[0])
        places = (blocks * LANES + _UNUSED_PLACES) // self._per_pair
        self.values: Entries = aligned((*shape, dim // LANES, places, LANES, self._per_pair), kinds[1])
        self.scales: Floats = aligned((2, *shape, 0 if is_float else blocks * LANES), np.float32)
        self.table = np.zeros((tables.VALUE_SCALES + 1, tables.NUM_CACHE_FIELDS), np.int64)
        for row, array, integers in zip(
            (tables.KEYS, tables.VALUES), (self.keys, self.values), max_integers(dim), strict=True
        ):
            self.table[row] = array.ctypes.data, 4 // self._per_pair, integers, *array.strides[:4]
        for row, scales in zip((tables.KEY_SCALES, tables.VALUE_SCALES), self.scales, strict=True):
            self.table[row] = scales.ctypes.data, 4, 0, *scales.strides

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        blocks, pairs = -(-length // LANES), -(-length // self._per_pair)
        self.keys[:, target, :, :blocks] = self.keys[:, source, :, :blocks]
        self.values[:, target, :, :, :pairs] = self.values[:, source, :, :, :pairs]
        self.scales[:, :, target, :, :length] = self.scales[:, :, source, :, :length]

    def move_path(self, slot: int, start: int, nodes: Sequence[int]) -> None:
        move_places(self.keys, self.values, self.scales, slot, start, np.asarray(nodes, np.int64))
