"""The KV cache of passes on a GPU. Accepted paths of all sequences are moved by one kernel before the next pass."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
import triton
import triton.language as tl

from pipeline.engine.torch.attention import SlotCache


class GpuCache(SlotCache):
    """Collects the moves of accepted paths. The cache holds the paths only after `apply_moves`."""

    def __init__(self, shape: tuple[int, int, int, int, int], dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(shape, dtype, device)
        self._moves: list[tuple[int, int, Sequence[int]]] = []

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        self.apply_moves()
        super().copy_prefix(source, target, length)

    def move_path(self, slot: int, start: int, nodes: Sequence[int]) -> None:
        self._moves.append((slot, start, nodes))

    def apply_moves(self) -> None:
        """Launch the collected moves."""
        if not self._moves:
            return
        ends = list(accumulate(len(nodes) for _, _, nodes in self._moves))
        starts = [slot_and_start for slot, start, _ in self._moves for slot_and_start in (slot, start)]
        nodes = [node for _, _, path in self._moves for node in path]
        num_paths = len(self._moves)
        table = torch.tensor([*starts, *ends, *nodes], dtype=torch.int32).to(self.keys.device)
        self._moves.clear()
        num_layers, _, num_heads, _, dim = self.keys.shape
        _move[(num_paths, num_layers, num_heads)](
            self.keys,
            self.values,
            table,
            *self.keys.stride()[:3],
            DIM=dim,
            LANES=triton.next_power_of_2(dim),
            num_warps=1,
        )


@triton.jit
def _move(keys, values, table, layer_stride, slot_stride, head_stride, DIM: tl.constexpr, LANES: tl.constexpr):
    """Move one path of one layer and key head. table: slot and first place of each path, ends of the paths among all
    nodes, then the nodes, ascending within a path."""
    path, num_paths = tl.program_id(0), tl.num_programs(0)
    slot, start = tl.load(table + 2 * path), tl.load(table + 2 * path + 1)
    ends, nodes = table + 2 * num_paths, table + 3 * num_paths
    begin = tl.load(ends + path - 1, mask=path > 0, other=0)
    base = tl.program_id(1).to(tl.int64) * layer_stride + slot.to(tl.int64) * slot_stride
    base += tl.program_id(2) * head_stride
    lanes = tl.arange(0, LANES)
    # A later entry may lie where an earlier one is written, so entries are moved in order, each lane by one thread.
    for place in range(begin, tl.load(ends + path)):
        source = base + (start + tl.load(nodes + place)) * DIM + lanes
        target = base + (start + place - begin) * DIM + lanes
        key = tl.load(keys + source, mask=lanes < DIM)
        value = tl.load(values + source, mask=lanes < DIM)
        tl.store(keys + target, key, mask=lanes < DIM)
        tl.store(values + target, value, mask=lanes < DIM)
