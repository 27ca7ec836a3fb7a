"""Linear layers with weights packed once for the CPU's matrix kernels: float32, or int8 (weight only, symmetric, one
scale per output channel).

torch's plain float32 linear packs its weight again at every call with more than one row. oneDNN can keep the packed
form, through an operation that torch's inductor emits for frozen weights. For int8:

    weight[n, k]  ~  integers[n, k] * scale[n],    integers in -127 .. 127

The arithmetic is float32: `rows @ integers.T`, times the scale, plus the bias. The rounded weights and the kernel are
the same for any number of rows. So passes with drafts compute the same function as plain decoding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

_LARGEST = 127
_ROW_STEP = 6
# Number of rows for which oneDNN optimizes the packing; its kernel works for any number.
_TYPICAL_ROWS = 16


class Quantized(NamedTuple):
    """A weight in int8. integers: [out, in] int8. scale: [out] float32."""

    integers: torch.Tensor
    scale: torch.Tensor


def quantize(weight: torch.Tensor) -> Quantized:
    """Round a weight [out, in] to int8. The largest magnitude of each row becomes 127."""
    exact = weight.detach().float()
    largest = exact.abs().amax(dim=1)
    scale = torch.where(largest > 0, largest / _LARGEST, torch.ones_like(largest))
    return Quantized((exact / scale[:, None]).round_().to(torch.int8), scale)


def dequantize(quantized: Quantized, dtype: torch.dtype) -> torch.Tensor:
    """[out, in] weights of type dtype."""
    return (quantized.integers.float() * quantized.scale[:, None]).to(dtype)


class QuantizedLinear(nn.Module):
    """A linear layer with int8 weights in plain operations: the reference, and the input of fusion and packing."""

    def __init__(self, quantized: Quantized, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.quantized = quantized
        self.bias = None if bias is None else bias.detach()
        self.out_features, self.in_features = quantized.integers.shape

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        result = functional.linear(rows, self.quantized.integers.to(rows.dtype)) * self.quantized.scale.to(rows.dtype)
        return result if self.bias is None else result + self.bias


class _OneDnnPacked(nn.Module):
    """For float32 weights and activations. Does not keep the plain weight."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach()
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, _TYPICAL_ROWS)
        self._bias = None if linear.bias is None else linear.bias.detach()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._packed, self._bias, "none", [], "")
        return result


class _FbgemmPacked(nn.Module):
    """For int8 weights and float32 activations. FBGEMM stores the weight as float16, which holds these integers
    exactly, and multiplies in float32, with half the memory traffic of float32 weights. Its AVX2 kernels for one and
    two rows sum in another order than those for three to six. So rows are padded to a multiple of six, and each row has
    the same bits alone and with others."""

    def __init__(self, linear: QuantizedLinear) -> None:
        super().__init__()
        self._packed: Any = torch.ops.quantized.linear_prepack_fp16(linear.quantized.integers.float(), None)
        self._scale, self._bias = linear.quantized.scale, linear.bias

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        flat = rows.reshape(-1, rows.shape[-1])
        padded = functional.pad(flat, (0, 0, 0, -len(flat) % _ROW_STEP))
        result: torch.Tensor = torch.ops.quantized.linear_dynamic_fp16(padded, self._packed)[: len(flat)]
        result = result.view(*rows.shape[:-1], result.shape[-1]).mul_(self._scale)
        return result if self._bias is None else result.add_(self._bias)


def can_quantize() -> bool:
    """Whether this build of torch has the kernel on this CPU."""
    return "fbgemm" in torch.backends.quantized.supported_engines


def replace_layers(model: nn.Module, replacement: Callable[[nn.Module], nn.Module | None]) -> None:
    """Replace every layer below the model for which the function returns another one."""
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if (other := replacement(layer)) is not None:
                setattr(parent, name, other)


def pack_linears(model: nn.Module) -> None:
    """Replace every linear layer of a float32 model on the CPU by its packed form, if there is one."""

    def packed(layer: nn.Module) -> nn.Module | None:
        if type(layer) is nn.Linear:
            has_kernel = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
            return _OneDnnPacked(layer) if has_kernel and layer.weight.device.type == "cpu" else None
        return _FbgemmPacked(layer) if type(layer) is QuantizedLinear and can_quantize() else None

    replace_layers(model, packed)
