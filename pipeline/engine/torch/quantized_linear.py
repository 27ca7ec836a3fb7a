"""Linear layers with int8 weights (weight only, symmetric, one scale per output channel), and the CPU kernels for them.

    weight[n, k]  ~  integers[n, k] * scale[n],    integers in -127 .. 127

The arithmetic has the activations' type: `rows @ integers.T`, times the scale, plus the bias. Neither the rounding of
the weights nor a kernel depends on the number of rows, so drafts are verified by the same function that decodes without
drafts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

_LARGEST = 127
_VECTOR = 32
_FLOAT32_ROWS = 6


class Quantized(NamedTuple):
    """integers: [out, in] int8. scale: [out] float32."""

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


class _Float32Packed(nn.Module):
    """For float32 activations. FBGEMM stores the weight as float16, which holds these integers exactly, and multiplies
    in float32, with half the memory traffic of float32 weights. Its AVX2 kernels for one and two rows sum in another
    order than those for three to six. So rows are padded to a multiple of six, and each row has the same bits alone and
    with others."""

    def __init__(self, linear: QuantizedLinear) -> None:
        super().__init__()
        self._packed: Any = torch.ops.quantized.linear_prepack_fp16(linear.quantized.integers.float(), None)
        self._scale, self._bias = linear.quantized.scale, linear.bias

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        flat = rows.reshape(-1, rows.shape[-1])
        padded = functional.pad(flat, (0, 0, 0, -len(flat) % _FLOAT32_ROWS))
        result: torch.Tensor = torch.ops.quantized.linear_dynamic_fp16(padded, self._packed)[: len(flat)]
        result = result.view(*rows.shape[:-1], -1).mul_(self._scale)
        return result if self._bias is None else result.add_(self._bias)


class _HalfPacked(nn.Module):
    """For 16-bit activations: torch's own kernel, which sums in float32."""

    def __init__(self, linear: QuantizedLinear, dtype: torch.dtype) -> None:
        super().__init__()
        self._integers = linear.quantized.integers.contiguous()
        self._scale, self._bias = linear.quantized.scale.to(dtype), linear.bias

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        flat = rows.reshape(-1, rows.shape[-1])
        result: torch.Tensor = torch.ops.aten._weight_int8pack_mm(flat, self._integers, self._scale)
        result = result.view(*rows.shape[:-1], -1)
        return result if self._bias is None else result.add_(self._bias)


def can_quantize() -> bool:
    """Whether this build of torch has the kernel for float32 activations on this CPU."""
    return "fbgemm" in torch.backends.quantized.supported_engines


def concatenate(linears: list[QuantizedLinear]) -> QuantizedLinear:
    """Join layers with the same input into one."""
    biases = [linear.bias for linear in linears if linear.bias is not None]
    integers = torch.cat([linear.quantized.integers for linear in linears])
    scale = torch.cat([linear.quantized.scale for linear in linears])
    return QuantizedLinear(Quantized(integers, scale), torch.cat(biases) if biases else None)


def pack_quantized(model: nn.Module, dtype: torch.dtype) -> None:
    """Replace every int8 layer on the CPU by the form for activations of this type. float64 and other devices keep the
    plain operations."""
    for module in model.modules():
        for name, child in module.named_children():
            if type(child) is not QuantizedLinear or child.quantized.integers.device.type != "cpu":
                continue
            if dtype == torch.float32 and can_quantize():
                setattr(module, name, _Float32Packed(child))
            elif dtype in (torch.bfloat16, torch.float16) and _fits_half_kernel(child):
                setattr(module, name, _HalfPacked(child, dtype))


def _fits_half_kernel(linear: QuantizedLinear) -> bool:
    """Whether the widths are multiples of a vector, which the 16-bit kernel requires without a check."""
    return linear.in_features % _VECTOR == 0 and linear.out_features % _VECTOR == 0
