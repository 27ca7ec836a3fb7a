"""Fuses operations of a loaded transformers model, without a change of its modelling code.

Two kinds are fused: linear layers with the same input (q, k and v; gate and up), and RMS norms, which the modelling
code computes in half a dozen operations.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from pipeline.engine.torch.linear_layers import Quantized, QuantizedLinear, replace_layers

# Sibling layers with the same input.
_FUSED_GROUPS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


class FusedLinear(nn.Module):
    """Several linear layers as one. Keeps the output for the last input until all its parts are used."""

    def __init__(self, linear: nn.Module, widths: list[int]) -> None:
        super().__init__()
        self.linear = linear
        self.widths = widths
        self._input: torch.Tensor | None = None
        self._parts: tuple[torch.Tensor, ...] = ()

    def part(self, rows: torch.Tensor, index: int) -> torch.Tensor:
        """Output of one of the layers. The first call with an input computes all; the call for the last layer frees
        them."""
        if rows is not self._input:
            self._parts = self.linear(rows).split(self.widths, dim=-1)
            self._input = rows
        part = self._parts[index]
        if index == len(self.widths) - 1:
            self._input, self._parts = None, ()
        return part


class FusedPart(nn.Module):
    """Replaces one of the fused layers."""

    def __init__(self, fused: FusedLinear, index: int) -> None:
        super().__init__()
        self._fused = (fused,)  # in a tuple, so that torch registers the module only once
        self._index = index

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self._fused[0].part(rows, self._index)


def fuse_layers(model: nn.Module) -> None:
    """Fuse the layers that have the expected form."""
    for module in list(model.modules()):
        for names in _FUSED_GROUPS:
            linears = [getattr(module, name, None) for name in names]
            together = concatenated(linears)
            if together is not None:
                fused = FusedLinear(together, [linear.out_features for linear in linears])  # type: ignore[union-attr]
                module.add_module("fused_" + "_".join(names), fused)
                for index, name in enumerate(names):
                    setattr(module, name, FusedPart(fused, index))
    replace_layers(model, _rms_norm)


def concatenated(linears: list[Any]) -> nn.Linear | QuantizedLinear | None:
    """One layer with the outputs of all; None unless all are layers of the same kind and input width."""
    kinds = {type(linear) for linear in linears}
    if kinds not in ({nn.Linear}, {QuantizedLinear}):
        return None
    if len({(linear.in_features, linear.bias is None) for linear in linears}) != 1:
        return None
    bias = None if linears[0].bias is None else torch.cat([linear.bias.detach() for linear in linears])
    if kinds == {QuantizedLinear}:
        integers, scales = zip(*(linear.quantized for linear in linears), strict=True)
        return QuantizedLinear(Quantized(torch.cat(integers), torch.cat(scales)), bias)
    weight = torch.cat([linear.weight.detach() for linear in linears])
    together = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    together.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        together.bias = nn.Parameter(bias, requires_grad=False)
    return together


@torch.inference_mode()
def _rms_norm(norm: nn.Module) -> nn.RMSNorm | None:
    """torch's norm in one operation (arXiv 1910.07467), if the results are the same. Some families multiply by
    1 + weight, for example."""
    weight, epsilon = getattr(norm, "weight", None), getattr(norm, "variance_epsilon", None)
    if epsilon is None or not type(norm).__name__.endswith("RMSNorm"):
        return None
    if not isinstance(weight, torch.Tensor) or weight.dtype not in (torch.float32, torch.float64):
        return None  # in 16 bit the results would round differently
    fused = nn.RMSNorm(weight.shape, epsilon, elementwise_affine=False)
    fused.weight = nn.Parameter(weight.detach(), requires_grad=False)
    probe = torch.linspace(-2, 3, 2 * weight.numel(), dtype=weight.dtype, device=weight.device).view(2, -1)
    return fused if torch.allclose(fused(probe), norm(probe), atol=1e-5, rtol=1e-5) else None
