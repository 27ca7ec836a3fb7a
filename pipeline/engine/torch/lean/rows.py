"""Vectorized loops over rows of float32, as LLVM code that numba compiles into the caller.

A row is given by its address and has a multiple of 16 entries. A sum consists of 16 partial sums, one per lane, which
are added in a fixed order. So a result depends on the row alone.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir
from numba import types

from pipeline.engine.torch.lean.compilation import emitted
from pipeline.engine.torch.lean.tile_steps import USES_BF16, ZERO_POINT
from pipeline.engine.torch.lean.vectors import (
    F32,
    FLOATS,
    I8,
    I16,
    I32,
    I64,
    INTS,
    LANES,
    LARGEST,
    SHORTS,
    absolute,
    call,
    constant,
    load,
    loop,
    maximum,
    prefetch,
    reduce,
    rough_exp,
    rounded,
    rounded_upper,
    splat,
    store,
    vector_exp,
)

# Bits after the binary point of a sum of exponentials.
EXP_BITS = 30
_LONGS = ir.VectorType(I64, LANES)


def _fold(
    builder: ir.IRBuilder,
    row: ir.Value,
    blocks: ir.Value,
    first: float,
    join: Callable[[ir.Value, ir.Value], ir.Value],
) -> ir.Value:
    """Emit a loop that joins every vector of a row to a result, which has `first` in every lane at the beginning."""

    def body(place: ir.Value, result: ir.Value | None) -> ir.Value:
        return join(result, load(builder, builder.add(row, place), FLOATS))

    return loop(builder, blocks, constant(first), body)


def _map(
    builder: ir.IRBuilder,
    row: ir.Value,
    target: ir.Value,
    blocks: ir.Value,
    compute: Callable[[ir.Value, ir.Value], ir.Value],
) -> None:
    """Emit a loop that stores compute(vector, its byte offset) for every vector of a row."""

    def body(place: ir.Value, _: ir.Value | None) -> None:
        vector = load(builder, builder.add(row, place), FLOATS)
        store(builder, compute(vector, place), builder.add(target, place))

    loop(builder, blocks, None, body)


@emitted(types.float32, types.int64, types.int64)
def sum_of_squares(builder: ir.IRBuilder, row: ir.Value, blocks: ir.Value) -> ir.Value:
    """Sum of the squares of a row of 16 * blocks entries."""

    def add_square(total: ir.Value, vector: ir.Value) -> ir.Value:
        return call(builder, "llvm.fma.v16f32", FLOATS, [vector, vector, total])

    return reduce(builder, _fold(builder, row, blocks, 0.0, add_square), builder.fadd)


@emitted(types.float32, types.int64, types.int64, types.float32)
def sum_of_exp(builder: ir.IRBuilder, row: ir.Value, blocks: ir.Value, highest: ir.Value) -> ir.Value:
    """Sum of exp(entry - highest) over a row of 16 * blocks entries, none above `highest`, within 0.01 %."""
    base = splat(builder, highest, FLOATS)

    def add_exp(total: ir.Value, vector: ir.Value) -> ir.Value:
        return builder.fadd(total, rough_exp(builder, builder.fsub(vector, base)))

    return reduce(builder, _fold(builder, row, blocks, 0.0, add_exp), builder.fadd)


@emitted(types.float32, types.int64, types.int64)
def largest(builder: ir.IRBuilder, row: ir.Value, blocks: ir.Value) -> ir.Value:
    """Largest entry of a row of 16 * blocks entries."""
    join = maximum(builder)
    return reduce(builder, _fold(builder, row, blocks, float("-inf"), join), join)


@emitted(types.float32, types.int64, types.int64)
def largest_magnitude(builder: ir.IRBuilder, row: ir.Value, blocks: ir.Value) -> ir.Value:
    """Largest absolute value of a row of 16 * blocks entries."""
    join = maximum(builder)
    result = _fold(builder, row, blocks, 0.0, lambda best, vector: join(best, absolute(builder, vector)))
    return reduce(builder, result, join)


@emitted(types.void, types.int64, types.float32, types.int64, types.int64, types.int64)
def scale_row(
    builder: ir.IRBuilder, row: ir.Value, factor: ir.Value, weight: ir.Value, target: ir.Value, blocks: ir.Value
) -> None:
    """target[i] = row[i] * factor * weight[i]."""
    factors = splat(builder, factor, FLOATS)

    def scaled(vector: ir.Value, place: ir.Value) -> ir.Value:
        return builder.fmul(builder.fmul(vector, factors), load(builder, builder.add(weight, place), FLOATS))

    _map(builder, row, target, blocks, scaled)


@emitted(types.void, types.int64, types.float32, types.int64, types.int64)
def quantize_row(builder: ir.IRBuilder, row: ir.Value, factor: ir.Value, target: ir.Value, blocks: ir.Value) -> None:
    """target[i] = round(row[i] * factor) + ZERO_POINT as bytes."""
    factors = splat(builder, factor, FLOATS)

    def body(place: ir.Value, _: ir.Value | None) -> None:
        integers = rounded(builder, builder.fmul(load(builder, builder.add(row, place), FLOATS), factors))
        shifted = builder.add(integers, ir.Constant(INTS, [ZERO_POINT] * LANES))
        quarter = builder.lshr(place, ir.Constant(I64, 2))
        store(builder, builder.trunc(shifted, ir.VectorType(I8, LANES)), builder.add(target, quarter), align=1)

    loop(builder, blocks, None, body)


@emitted(types.void, types.int64, types.int64, types.int64)
def mask_end(builder: ir.IRBuilder, row: ir.Value, blocks: ir.Value, count: ir.Value) -> None:
    """row[i] = -inf for all i but the first `count`, at most 16, in place. blocks: at least 1."""
    lanes, kept = ir.Constant(INTS, list(range(LANES))), splat(builder, builder.trunc(count, I32), INTS)

    def masked(vector: ir.Value, place: ir.Value) -> ir.Value:
        first = splat(builder, builder.trunc(builder.lshr(place, ir.Constant(I64, 2)), I32), INTS)
        is_kept = builder.icmp_signed("<", builder.add(first, lanes), kept)
        return builder.select(is_kept, vector, constant(float("-inf")))

    _map(builder, row, row, blocks, masked)


@emitted(types.void, types.int64, types.int64, types.int64)
def round_row(builder: ir.IRBuilder, row: ir.Value, target: ir.Value, blocks: ir.Value) -> None:
    """target[i] = row[i] rounded to bfloat16, ties to even. Without USES_BF16 the target is float32. The target may
    begin where the row does."""

    def body(place: ir.Value, _: ir.Value | None) -> None:
        upper = rounded_upper(builder, load(builder, builder.add(row, place), INTS))
        if USES_BF16:
            narrow = builder.trunc(upper, SHORTS)
            store(builder, narrow, builder.add(target, builder.lshr(place, ir.Constant(I64, 1))), align=2)
        else:
            store(builder, builder.shl(upper, ir.Constant(INTS, [16] * LANES)), builder.add(target, place))

    loop(builder, blocks, None, body)


@emitted(types.int64, types.int64, types.int64, types.float32)
def exp_row(builder: ir.IRBuilder, row: ir.Value, blocks: ir.Value, highest: ir.Value) -> ir.Value:
    """row[i] = exp(row[i] - highest), in place, for entries up to `highest`. Returns the sum in units of 2^-EXP_BITS;
    every entry is rounded down. A sum of integers does not depend on the order of the entries."""
    base, unit = splat(builder, highest, FLOATS), constant(2.0**EXP_BITS)

    def add_exp(place: ir.Value, total: ir.Value | None) -> ir.Value:
        address = builder.add(row, place)
        vector = vector_exp(builder, builder.fsub(load(builder, address, FLOATS), base))
        store(builder, vector, address)
        return builder.add(total, builder.sext(builder.fptosi(builder.fmul(vector, unit), INTS), _LONGS))

    return reduce(builder, loop(builder, blocks, ir.Constant(_LONGS, [0] * LANES), add_exp), builder.add)


@emitted(types.float32, types.int64, types.int64, types.int64)
def scale_weights(builder: ir.IRBuilder, row: ir.Value, scales: ir.Value, blocks: ir.Value) -> ir.Value:
    """row[i] *= scales[i] for entries of at least 0, in place. 0 stays 0, also where the scale is NaN. Returns the
    largest entry, which is at least 0."""
    join = maximum(builder)

    def scale(place: ir.Value, best: ir.Value | None) -> ir.Value:
        address = builder.add(row, place)
        vector = load(builder, address, FLOATS)
        product = builder.fmul(vector, load(builder, builder.add(scales, place), FLOATS))
        product = builder.select(builder.fcmp_ordered(">", vector, constant(0.0)), product, constant(0.0))
        store(builder, product, address)
        return join(best, product)

    return reduce(builder, loop(builder, blocks, constant(0.0), scale), join)


@emitted(types.int64, types.int64, types.float32, types.int64, types.int64)
def quantize_row_int16(
    builder: ir.IRBuilder, row: ir.Value, factor: ir.Value, target: ir.Value, blocks: ir.Value
) -> ir.Value:
    """target[i] = round(row[i] * factor) as int16. The target may begin where the row does. Returns the sum."""
    factors = splat(builder, factor, FLOATS)

    def body(place: ir.Value, total: ir.Value | None) -> ir.Value:
        integers = rounded(builder, builder.fmul(load(builder, builder.add(row, place), FLOATS), factors))
        half = builder.lshr(place, ir.Constant(I64, 1))
        store(builder, builder.trunc(integers, SHORTS), builder.add(target, half), align=2)
        return builder.add(total, integers)

    totals = builder.sext(loop(builder, blocks, ir.Constant(INTS, [0] * LANES), body), _LONGS)
    return reduce(builder, totals, builder.add)


@emitted(types.void, types.int64, types.int64, types.int64)
def shift_row(builder: ir.IRBuilder, row: ir.Value, shift: ir.Value, blocks: ir.Value) -> None:
    """row[i] = round(row[i] / 2^shift), in place, for int16 of at least 0. shift: 1 to 15."""
    shifts = splat(builder, builder.trunc(shift, I16), SHORTS)
    halves = builder.lshr(builder.shl(ir.Constant(SHORTS, [1] * LANES), shifts), ir.Constant(SHORTS, [1] * LANES))

    def body(place: ir.Value, _: ir.Value | None) -> None:
        address = builder.add(row, builder.lshr(place, ir.Constant(I64, 1)))
        sums = builder.add(load(builder, address, SHORTS), halves)
        store(builder, builder.lshr(sums, shifts), address, align=2)

    loop(builder, blocks, None, body)


@emitted(types.void, types.int64, types.int64, types.int64, types.int64)
def gate_row(builder: ir.IRBuilder, gate: ir.Value, up: ir.Value, target: ir.Value, blocks: ir.Value) -> None:
    """target[i] = silu(gate[i]) * up[i]."""

    def gated(vector: ir.Value, place: ir.Value) -> ir.Value:
        negative = builder.fsub(constant(0.0), vector)
        negative = builder.select(builder.fcmp_ordered(">", negative, constant(LARGEST)), constant(LARGEST), negative)
        silu = builder.fdiv(vector, builder.fadd(constant(1.0), vector_exp(builder, negative)))
        return builder.fmul(silu, load(builder, builder.add(up, place), FLOATS))

    _map(builder, gate, target, blocks, gated)


@emitted(types.void, types.int64)
def prefetch_to_write(builder: ir.IRBuilder, address: ir.Value) -> None:
    """Prefetch the cache line at an address for a write."""
    prefetch(builder, address, to_write=True)


@emitted(types.void, types.int64, types.float32)
def store_float(builder: ir.IRBuilder, address: ir.Value, value: ir.Value) -> None:
    """Write one float32."""
    store(builder, value, address)


@emitted(types.CPointer(types.float32), types.int64)
def float_pointer(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """The address as a pointer, for `numba.carray`."""
    return builder.inttoptr(address, F32.as_pointer())


@emitted(types.CPointer(types.int32), types.int64)
def int32_pointer(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """As `float_pointer`, for int32."""
    return builder.inttoptr(address, I32.as_pointer())


@emitted(types.CPointer(types.int16), types.int64)
def int16_pointer(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """As `float_pointer`, for int16."""
    return builder.inttoptr(address, I16.as_pointer())
