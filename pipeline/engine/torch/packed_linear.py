"""Linear layers with weights packed once for the CPU's matrix kernels.

torch's plain float32 linear packs its weight again at every call with more than one row. oneDNN can keep the packed
form, through an operation that torch's inductor emits for frozen weights.
"""

from __future__ import annotations

import torch
from torch import nn

# Number of rows for which the packing is optimized; the kernel works for any number.
_TYPICAL_ROWS = 16


class PackedLinear(nn.Module):
    """The packed form of a linear layer, for inference. Does not keep the plain weight."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach()
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, _TYPICAL_ROWS)
        self._bias = None if linear.bias is None else linear.bias.detach()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._packed, self._bias, "none", [], "")
        return result


def can_pack(model: nn.Module) -> bool:
    """Whether packing is possible: it needs oneDNN in torch, and float32 weights on the CPU."""
    parameter = next(model.parameters())
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return available and parameter.device.type == "cpu" and parameter.dtype == torch.float32


def pack_linears(model: nn.Module) -> None:
    """Replace every linear layer of the model by its packed form."""
    for module in model.modules():
        for name, child in module.named_children():
            if type(child) is nn.Linear:
                setattr(module, name, PackedLinear(child))
