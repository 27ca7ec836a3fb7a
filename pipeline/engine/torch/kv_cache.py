"""The slot KV cache in torch: one row of fixed length per sequence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pipeline.engine.memory import available_bytes
from pipeline.engine.torch.slots import require_cache_memory


@dataclass(slots=True, eq=False)
class SlotCache:
    """keys, values: [layer, slot, kv_head, max_seq_len, head_dim]. The system allocates pages at their first write."""

    keys: torch.Tensor
    values: torch.Tensor

    @classmethod
    def allocate(
        cls,
        *,
        num_layers: int,
        num_slots: int,
        num_kv_heads: int,
        max_seq_len: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> SlotCache:
        """Raises BuildError if the device has not enough memory."""
        shape = (num_layers, num_slots, num_kv_heads, max_seq_len, head_dim)
        num_bytes = 2 * math.prod(shape) * dtype.itemsize
        require_cache_memory(num_bytes, _available_bytes(device), num_slots, max_seq_len, str(device))
        keys = torch.empty(shape, dtype=dtype, device=device)
        return cls(keys, torch.empty_like(keys))

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        self.keys[:, target, :, :length] = self.keys[:, source, :, :length]
        self.values[:, target, :, :length] = self.values[:, source, :, :length]

    def move_path(self, slot: int, start: int, nodes: Sequence[int]) -> None:
        source = torch.as_tensor(nodes, device=self.keys.device) + start
        self.keys[:, slot, :, start : start + len(nodes)] = self.keys[:, slot, :, source]
        self.values[:, slot, :, start : start + len(nodes)] = self.values[:, slot, :, source]


def _available_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return available_bytes()
