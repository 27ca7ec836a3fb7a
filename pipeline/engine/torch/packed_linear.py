"""Linear layers with weights packed once for the CPU's matrix kernels.

torch's plain float32 linear lays its weight out anew on every call with more than one row. oneDNN can keep the packed
form; this is the operation that torch's own inductor emits for frozen weights.
"""

from __future__ import annotations

import torch
from torch import nn

# The kernel is chosen for this many rows when the weight is packed; other numbers of rows work as well.
_TYPICAL_ROWS = 16


class PackedLinear(nn.Module):
    """Computes what `linear` computes, in inference, without keeping its plain weight."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach()
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, _TYPICAL_ROWS)
        self._bias = None if linear.bias is None else linear.bias.detach()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._packed, self._bias, "none", [], "")
        return result


def can_pack(model: nn.Module) -> bool:
    """Whether this build of torch and the model's weights allow packing: oneDNN, float32, on the CPU."""
    parameter = next(model.parameters())
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return available and parameter.device.type == "cpu" and parameter.dtype == torch.float32


def pack_linears(model: nn.Module) -> None:
    """Replace every linear layer of the model by its packed form."""
    for module in model.modules():
        for name, child in module.named_children():
            if type(child) is nn.Linear:
                setattr(module, name, PackedLinear(child))
