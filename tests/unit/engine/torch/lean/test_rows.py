"""Vector loops against numpy in float64."""

from __future__ import annotations

import numpy as np
import torch

from pipeline.engine.torch.lean.compilation import kernel
from pipeline.engine.torch.lean.rows import exp_row, gate_row, quantize_row, round_row, sum_of_exp, sum_of_squares
from pipeline.engine.torch.lean.tiles import HAS_BF16, ZERO_POINT


@kernel
def exponentials(row: np.ndarray, highest: float) -> float:
    total = sum_of_exp(row.ctypes.data, len(row) // 16, highest)
    exp_row(row.ctypes.data, len(row) // 16, highest)
    return total


@kernel
def gated(gate: np.ndarray, up: np.ndarray, result: np.ndarray) -> None:
    gate_row(gate.ctypes.data, up.ctypes.data, result.ctypes.data, len(gate) // 16)


@kernel
def quantized(row: np.ndarray, factor: float, result: np.ndarray) -> None:
    quantize_row(row.ctypes.data, factor, result.ctypes.data, len(row) // 16)


@kernel
def rounded(row: np.ndarray, result: np.ndarray) -> None:
    round_row(row.ctypes.data, result.ctypes.data, len(row) // 16)


@kernel
def squares(row: np.ndarray) -> float:
    return sum_of_squares(row.ctypes.data, len(row) // 16)


def test_exp_is_right_to_the_last_place_and_0_where_nothing_is_seen() -> None:
    row = np.concatenate([np.linspace(-86, 3, 2000), [-np.inf, -1000.0] * 8]).astype(np.float32)
    difference = row - np.float32(3)
    expected = np.where(difference < -87, 0, np.exp(difference.astype(np.float64)))
    total = exponentials(row, np.float32(3))
    np.testing.assert_allclose(row, expected, rtol=2e-7)
    assert not row[2000:].any()
    np.testing.assert_allclose(total, expected.sum(), rtol=1e-4)


def test_gates_squares_and_quantized_rows() -> None:
    random = np.random.default_rng(0)
    gate, up = random.normal(0, 20, 160).astype(np.float32), random.normal(size=160).astype(np.float32)
    gate[:3] = (-500, 500, 0)
    result = np.empty_like(gate)
    gated(gate, up, result)
    wide = gate.astype(np.float64)
    np.testing.assert_allclose(result, wide / (1 + np.exp(-np.clip(wide, -88, 88))) * up, rtol=1e-6, atol=1e-30)
    np.testing.assert_allclose(squares(up), (up.astype(np.float64) ** 2).sum(), rtol=1e-6)
    integers = np.empty(160, np.uint8 if ZERO_POINT else np.int8)
    quantized(up, np.float32(127) / np.abs(up).max(), integers)
    np.testing.assert_array_equal(
        integers, np.rint(up * (np.float32(127) / np.abs(up).max())).astype(np.int32) + ZERO_POINT
    )


def test_rows_are_rounded_to_bfloat16_like_torch_does() -> None:
    row = np.random.default_rng(0).normal(size=640).astype(np.float32)
    ties = np.asarray([0x3F808000, 0x3F818000, 0xBF808000, 0xBF818000, 0x3F808001, 0x3F807FFF], np.uint32)
    special = np.asarray([0.0, -0.0, np.inf, -np.inf, np.nan, 3.4e38, -3.4e38, 1e-40], np.float32)
    row[:14] = np.concatenate([ties.view(np.float32), special])
    expected = torch.from_numpy(row).bfloat16()
    result = np.zeros(640, np.uint16 if HAS_BF16 else np.float32)
    rounded(row, result)
    found = torch.from_numpy(result)
    assert torch.equal(
        (found.view(torch.bfloat16) if HAS_BF16 else found).float().nan_to_num(7), expected.float().nan_to_num(7)
    )
