"""Vector loops against numpy in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pipeline.engine.torch.lean.compilation import kernel
from pipeline.engine.torch.lean.int16_rows import inverse_scale, quantize_attention_weights
from pipeline.engine.torch.lean.rows import (
    EXP_BITS,
    exp_row,
    gate_row,
    quantize_row,
    quantize_row_int16,
    round_row,
    scale_weights,
    shift_row,
    sum_of_exp,
    sum_of_squares,
)
from pipeline.engine.torch.lean.tile_steps import USES_BF16, ZERO_POINT


@kernel
def exponentials(row: np.ndarray, highest: float) -> tuple[float, int]:
    total = sum_of_exp(row.ctypes.data, len(row) // 16, highest)
    return total, exp_row(row.ctypes.data, len(row) // 16, highest)


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
def weighed(row: np.ndarray, scales: np.ndarray) -> float:
    return scale_weights(row.ctypes.data, scales.ctypes.data, len(row) // 16)


@kernel
def shortened(row: np.ndarray, factor: float) -> int:
    return quantize_row_int16(row.ctypes.data, factor, row.ctypes.data, len(row) // 16)


@kernel
def shift(row: np.ndarray, amount: int) -> None:
    shift_row(row.ctypes.data, amount, len(row) // 16)


@kernel
def made_short(row: np.ndarray, highest: float) -> float:
    return quantize_attention_weights(row.ctypes.data, highest, len(row) // 16)


@kernel
def squares(row: np.ndarray) -> float:
    return sum_of_squares(row.ctypes.data, len(row) // 16)


def test_exp_is_right_to_the_last_place_and_0_where_nothing_is_seen() -> None:
    row = np.concatenate([np.linspace(-86, 3, 2000), [-np.inf, -1000.0] * 8]).astype(np.float32)
    difference = row - np.float32(3)
    expected = np.where(difference < -87, 0, np.exp(difference.astype(np.float64)))
    total, units = exponentials(row, np.float32(3))
    np.testing.assert_allclose(row, expected, rtol=2e-7)
    assert not row[2000:].any()
    np.testing.assert_allclose(total, expected.sum(), rtol=1e-4)
    assert units == np.floor(row.astype(np.float64) * 2**EXP_BITS).sum()


def test_sums_of_exponentials_do_not_depend_on_the_order() -> None:
    random = np.random.default_rng(0)
    row = random.normal(0, 4, 8192).astype(np.float32)
    highest = row.max()
    found = {exponentials(random.permutation(row), highest)[1] for _ in range(5)}
    assert len(found) == 1
    exact = np.exp(row.astype(np.float64) - highest).sum()
    np.testing.assert_allclose(found.pop() / 2**EXP_BITS, exact, rtol=1e-6)


def test_weights_are_scaled_and_made_integers() -> None:
    random = np.random.default_rng(0)
    row, scales = random.random(96, np.float32), random.random(96, np.float32)
    row[5], row[6], scales[6], row[7:9], scales[8] = 0, 0, np.nan, 0, np.inf
    expected = np.where(row > 0, row * np.nan_to_num(scales, posinf=0), np.float32(0))
    highest = weighed(row, scales)
    np.testing.assert_array_equal(row, expected)
    assert highest == expected.max()
    factor = np.float32(32767) / highest
    integers = np.rint(expected * factor).astype(np.int64)
    assert integers.max() == 32767
    assert shortened(row, factor) == integers.sum()
    shorts = row.view(np.int16)[:96]  # they begin where the row did
    np.testing.assert_array_equal(shorts, integers)
    for amount in (1, 4, 15):
        again = np.concatenate([integers, [0] * 96]).astype(np.int16)
        shift(again[:96], amount)
        np.testing.assert_array_equal(again[:96], np.floor(integers / 2**amount + 0.5))


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


@pytest.mark.parametrize("magnitude", [0.0, 1e-40, 1e-38, np.inf])
def test_rows_without_a_finite_scale_are_zeros(magnitude: float) -> None:
    assert inverse_scale(np.float32(magnitude), 127) == 0


def test_the_sum_of_many_weights_is_exact() -> None:
    assert shortened(np.ones(1 << 17, np.float32), np.float32(32767)) == 32767 << 17


@pytest.mark.parametrize("count", [16, 1 << 10, 1 << 20])
def test_sums_of_products_with_weights_fit_into_int32(count: int) -> None:
    weights = np.ones(count, np.float32)
    one = made_short(weights, np.float32(1))
    integers = weights.view(np.int16)[:count].astype(np.int64)
    assert integers.sum() * 2047 < 2**31
    np.testing.assert_allclose(integers * float(one), 1, rtol=0.01)


def test_rows_are_rounded_to_bfloat16_like_torch_does() -> None:
    row = np.random.default_rng(0).normal(size=640).astype(np.float32)
    ties = np.asarray([0x3F808000, 0x3F818000, 0xBF808000, 0xBF818000, 0x3F808001, 0x3F807FFF], np.uint32)
    special = np.asarray([0.0, -0.0, np.inf, -np.inf, np.nan, 3.4e38, -3.4e38, 1e-40], np.float32)
    row[:14] = np.concatenate([ties.view(np.float32), special])
    expected = torch.from_numpy(row).bfloat16()
    result = np.zeros(640, np.uint16 if USES_BF16 else np.float32)
    rounded(row, result)
    found = torch.from_numpy(result)
    assert torch.equal(
        (found.view(torch.bfloat16) if USES_BF16 else found).float().nan_to_num(7), expected.float().nan_to_num(7)
    )
