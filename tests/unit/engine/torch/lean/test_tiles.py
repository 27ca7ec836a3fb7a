"""Matrix tiles: exact in int8 and int16 on every kind of processor, one order of sums in float32 and in bfloat16."""

from __future__ import annotations

from math import isqrt

import numpy as np
import pytest

from pipeline.engine.torch.lean.compilation import kernel
from pipeline.engine.torch.lean.tile_steps import HAS_AVX2, HAS_AVX_VNNI, HAS_BF16, ZERO_POINT
from pipeline.engine.torch.lean.tiles import (
    MAX_BLOCKS,
    MAX_ROWS,
    avx2_int16_tile,
    avx2_tile,
    avx_vnni_int16_tile,
    avx_vnni_tile,
    bf16_tile,
    float32_tile,
    int8_tile,
    int16_tile,
    plain_int8_tile,
    plain_int16_tile,
    widening_tile,
)
from pipeline.engine.torch.lean.weights import as_float32

INPUTS = 64


@kernel
def arguments(
    addresses: np.ndarray, row_bytes: int, block_bytes: int, steps: int, rows: int, blocks: int
) -> tuple[int, ...]:
    x, w, start, scale, bias, row_scale, base, out = addresses
    return (
        x,
        row_bytes,
        w,
        block_bytes,
        64,
        steps,
        start,
        scale,
        bias,
        row_scale,
        base,
        0,
        out,
        4 * 48,
        w,
        64,
        rows,
        blocks,
    )


@kernel
def run_int8(addresses: np.ndarray, rows: int, blocks: int) -> None:
    int8_tile(*arguments(addresses, 64, 1024, 16, rows, blocks))


@kernel
def run_avx_vnni(addresses: np.ndarray, rows: int, blocks: int) -> None:
    avx_vnni_tile(*arguments(addresses, 64, 1024, 16, rows, blocks))


@kernel
def run_avx2(addresses: np.ndarray, rows: int, blocks: int) -> None:
    avx2_tile(*arguments(addresses, 64, 1024, 16, rows, blocks))


@kernel
def run_plain_int8(addresses: np.ndarray, rows: int, blocks: int) -> None:
    plain_int8_tile(*arguments(addresses, 64, 1024, 16, rows, blocks))


@kernel
def run_int16(addresses: np.ndarray, rows: int, blocks: int) -> None:
    int16_tile(*arguments(addresses, 128, 2048, 32, rows, blocks))


@kernel
def run_avx_vnni_int16(addresses: np.ndarray, rows: int, blocks: int) -> None:
    avx_vnni_int16_tile(*arguments(addresses, 128, 2048, 32, rows, blocks))


@kernel
def run_avx2_int16(addresses: np.ndarray, rows: int, blocks: int) -> None:
    avx2_int16_tile(*arguments(addresses, 128, 2048, 32, rows, blocks))


@kernel
def run_plain_int16(addresses: np.ndarray, rows: int, blocks: int) -> None:
    plain_int16_tile(*arguments(addresses, 128, 2048, 32, rows, blocks))


@kernel
def run_float32(addresses: np.ndarray, rows: int, blocks: int) -> None:
    float32_tile(*arguments(addresses, 256, 4096, 64, rows, blocks))


@kernel
def run_bf16(addresses: np.ndarray, rows: int, blocks: int) -> None:
    bf16_tile(*arguments(addresses, 128, 2048, 32, rows, blocks))


@kernel
def run_widening(addresses: np.ndarray, rows: int, blocks: int) -> None:
    widening_tile(*arguments(addresses, 256, 2048, 32, rows, blocks))


def addresses_of(*arrays: np.ndarray) -> np.ndarray:
    return np.asarray([array.ctypes.data for array in arrays], np.int64)


# Zero point of the rows, and whether this processor has the instructions.
@pytest.mark.parametrize(
    ("run", "zero_point", "runs_here"),
    [
        (run_int8, ZERO_POINT, True),
        (run_avx_vnni, 128, HAS_AVX_VNNI),
        (run_avx2, 0, HAS_AVX2),
        (run_plain_int8, 0, True),
    ],
    ids=["this CPU", "AVX-VNNI", "AVX2", "any CPU"],
)
@pytest.mark.parametrize("extreme", [False, True])
def test_int8_sums_are_exact(run, zero_point: int, runs_here: bool, extreme: bool) -> None:
    if not runs_here:
        pytest.skip("the processor lacks the instructions")
    random = np.random.default_rng(0)
    weight = random.integers(-127, 128, (48, INPUTS)).astype(np.int8)
    rows = random.integers(-127, 128, (8, INPUTS))
    if extreme:  # pairs of products that do not fit into int16
        weight[:], rows[:] = 127, 127
        weight[1::2], rows[1::2] = -127, -127
    packed = np.ascontiguousarray(weight.reshape(3, 16, 16, 4).transpose(0, 2, 1, 3))
    start = (-128 * weight.astype(np.int32).sum(1)).astype(np.int32)
    scale, row_scale = random.random(48, np.float32), random.random(8, np.float32)
    bias, base = random.random(48, np.float32), np.zeros(48, np.float32)
    sums = rows @ weight.T.astype(np.int64)
    row_bytes = (rows + zero_point).astype(np.uint8)
    expected = sums.astype(np.float32) * scale * row_scale[:, None] + bias
    for count in range(1, MAX_ROWS + 1):
        for blocks in (1, MAX_BLOCKS):
            out = np.full((8, 48), np.nan, np.float32)
            run(addresses_of(row_bytes, packed, start, scale, bias, row_scale, base, out), count, blocks)
            np.testing.assert_array_equal(out[:count, : 16 * blocks], expected[:count, : 16 * blocks])
            assert np.isnan(out[count:]).all()
            assert np.isnan(out[:, 16 * blocks :]).all()


@pytest.mark.parametrize(
    ("run", "runs_here"),
    [
        (run_int16, True),
        (run_avx_vnni_int16, HAS_AVX_VNNI),
        (run_avx2_int16, HAS_AVX2),
        (run_plain_int16, True),
    ],
    ids=["this CPU", "AVX-VNNI", "AVX2", "any CPU"],
)
@pytest.mark.parametrize("extreme", [False, True])
def test_int16_sums_are_exact_up_to_2_to_the_31(run, runs_here: bool, extreme: bool) -> None:
    if not runs_here:
        pytest.skip("the processor lacks the instructions")
    random = np.random.default_rng(0)
    most = isqrt((2**31 - 1) // INPUTS)
    weight, rows = (random.integers(-most, most + 1, (count, INPUTS)).astype(np.int16) for count in (48, 8))
    if extreme:
        weight[:], rows[:] = most, most
        weight[1::2] = -most
    packed = np.ascontiguousarray(weight.reshape(3, 16, 32, 2).transpose(0, 2, 1, 3))
    scale, row_scale = random.random(48, np.float32), random.random(8, np.float32)
    bias, base = random.random(48, np.float32), np.zeros(48, np.float32)
    sums = rows.astype(np.int64) @ weight.T.astype(np.int64)
    assert not extreme or abs(sums).min() > 0.99 * 2**31
    expected = sums.astype(np.float32) * scale * row_scale[:, None] + bias
    for count in range(1, MAX_ROWS + 1):
        for blocks in (1, MAX_BLOCKS):
            out = np.full((8, 48), np.nan, np.float32)
            run(addresses_of(rows, packed, base, scale, bias, row_scale, base, out), count, blocks)
            np.testing.assert_array_equal(out[:count, : 16 * blocks], expected[:count, : 16 * blocks])
            assert np.isnan(out[count:]).all()
            assert np.isnan(out[:, 16 * blocks :]).all()


def test_float32_sums_have_the_same_bits_in_tiles_of_every_size() -> None:
    random = np.random.default_rng(0)
    weight, rows = random.normal(size=(48, INPUTS)).astype(np.float32), random.normal(size=(8, INPUTS))
    rows = rows.astype(np.float32)
    packed = np.ascontiguousarray(weight.reshape(3, 16, INPUTS).transpose(0, 2, 1))
    zeros = np.zeros(48, np.float32)
    whole = np.empty((8, 48), np.float32)
    for first in range(8):
        for block in range(3):
            addresses = addresses_of(rows[first], packed[block], zeros, zeros, zeros, zeros, zeros, whole[first])
            addresses[-1] += 64 * block
            run_float32(addresses, 1, 1)
    np.testing.assert_allclose(whole, rows @ weight.T, rtol=1e-4, atol=1e-4)
    for count in range(1, MAX_ROWS + 1):
        for blocks in (1, MAX_BLOCKS):
            out = np.zeros((8, 48), np.float32)
            run_float32(addresses_of(rows, packed, zeros, zeros, zeros, zeros, zeros, out), count, blocks)
            assert out[:count, : 16 * blocks].tobytes() == whole[:count, : 16 * blocks].tobytes()


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(run_bf16, marks=pytest.mark.skipif(not HAS_BF16, reason="needs AVX512_BF16"), id="AVX512_BF16"),
        pytest.param(run_widening, id="any CPU"),
    ],
)
def test_bfloat16_sums_are_one_chain_with_the_same_bits_on_every_processor(run) -> None:
    random = np.random.default_rng(0)
    weight, rows = (random.normal(size=shape).astype(np.float32).view(np.uint32) >> 16 for shape in ((48, 64), (8, 64)))
    packed = np.ascontiguousarray(weight.astype(np.uint16).reshape(3, 16, 32, 2).transpose(0, 2, 1, 3))
    wide_weight, wide_rows = as_float32(weight.astype(np.uint16)), as_float32(rows.astype(np.uint16))
    bias, base = random.random(48, np.float32), random.random(48, np.float32)
    sums = np.zeros((8, 48), np.float32)
    for step in range(0, INPUTS, 2):
        for place in (step + 1, step):  # float64 holds each product and each sum of these numbers exactly
            products = np.outer(wide_rows[:, place].astype(np.float64), wide_weight[:, place])
            sums = (sums + products).astype(np.float32)
    expected = base + (sums + bias)
    inputs = rows.astype(np.uint16) if run is run_bf16 else wide_rows
    for count in range(1, MAX_ROWS + 1):
        for blocks in (1, MAX_BLOCKS):
            out = np.full((8, 48), np.nan, np.float32)
            run(addresses_of(inputs, packed, base, base, bias, base, base, out), count, blocks)
            np.testing.assert_array_equal(out[:count, : 16 * blocks], expected[:count, : 16 * blocks])
            assert np.isnan(out[count:]).all()
            assert np.isnan(out[:, 16 * blocks :]).all()
