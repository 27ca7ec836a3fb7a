"""The slot KV cache in torch: one row of fixed length per sequence."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from pipeline.engine.memory import available_bytes
from pipeline.engine.torch.slots import require_cache_memory


class SlotCache:
    """keys, values: [layer, slot, kv_head, max_seq_len, head_dim]. The system allocates pages at their first write."""

    def __init__(self, shape: tuple[int, int, int, int, int], dtype: torch.dtype, device: torch.device) -> None:
        """Raises BuildError if the device has not enough memory."""
        _, num_slots, _, max_seq_len, _ = shape
        num_bytes = 2 * math.prod(shape) * dtype.itemsize
        is_cuda = device.type == "cuda"
        available = int(torch.cuda.mem_get_info(device)[0]) if is_cuda else available_bytes()
        require_cache_memory(num_bytes, available, num_slots, max_seq_len, str(device))
        self.keys = torch.empty(shape, dtype=dtype, device=device)
        self.values = torch.empty_like(self.keys)

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        self.keys[:, target, :, :length] = self.keys[:, source, :, :length]
        self.values[:, target, :, :length] = self.values[:, source, :, :length]

    def move_path(self, slot: int, start: int, nodes: Sequence[int]) -> None:
        source = torch.as_tensor(nodes, device=self.keys.device) + start
        self.keys[:, slot, :, start : start + len(nodes)] = self.keys[:, slot, :, source]
        self.values[:, slot, :, start : start + len(nodes)] = self.values[:, slot, :, source]
