"""Vectorised loops over rows of float32, as LLVM code that numba compiles into the caller.

A row is given by its address and has a multiple of 16 entries. A sum consists of 16 partial sums, one per lane, which
are added in a fixed order. So a result depends on the row alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from llvmlite import ir
from numba import types

from pipeline.engine.torch.lean.compilation import generated
from pipeline.engine.torch.lean.tiles import HAS_BF16, ZERO_POINT
from pipeline.engine.torch.lean.vectors import (
    FLOATS,
    I8,
    I32,
    I64,
    INTS,
    LANES,
    absolute,
    call,
    constant,
    load,
    loop,
    maximum,
    prefetch,
    reduce,
    rough_exp,
    rounded_upper,
    splat,
    store,
    vector_exp,
)


@generated
def sum_of_squares(typing: Any, row: Any, blocks: Any) -> Any:
    """Sum of the squares of a row of 16 * blocks entries."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        row, blocks = arguments

        def body(place: ir.Value, total: ir.Value | None) -> ir.Value:
            vector = load(builder, builder.add(row, place), FLOATS)
            return call(builder, "llvm.fma.v16f32", FLOATS, [vector, vector, total])

        return reduce(builder, loop(builder, blocks, constant(0.0), body), builder.fadd)

    return types.float32(types.int64, types.int64), generate


@generated
def sum_of_exp(typing: Any, row: Any, blocks: Any, highest: Any) -> Any:
    """Sum of exp(entry - highest) over a row of 16 * blocks entries, none above `highest`, within 0.01 %."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        row, blocks, highest = arguments
        base = splat(builder, highest, FLOATS)

        def body(place: ir.Value, total: ir.Value | None) -> ir.Value:
            vector = builder.fsub(load(builder, builder.add(row, place), FLOATS), base)
            return builder.fadd(total, rough_exp(builder, vector))

        return reduce(builder, loop(builder, blocks, constant(0.0), body), builder.fadd)

    return types.float32(types.int64, types.int64, types.float32), generate


@generated
def largest(typing: Any, row: Any, blocks: Any) -> Any:
    """Largest entry of a row of 16 * blocks entries."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        row, blocks = arguments
        join = maximum(builder)
        least = constant(float("-inf"))
        result = loop(
            builder, blocks, least, lambda place, best: join(best, load(builder, builder.add(row, place), FLOATS))
        )
        return reduce(builder, result, join)

    return types.float32(types.int64, types.int64), generate


@generated
def largest_magnitude(typing: Any, row: Any, blocks: Any) -> Any:
    """Largest absolute value of a row of 16 * blocks entries."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        row, blocks = arguments
        join = maximum(builder)

        def body(place: ir.Value, best: ir.Value | None) -> ir.Value:
            return join(best, absolute(builder, load(builder, builder.add(row, place), FLOATS)))

        return reduce(builder, loop(builder, blocks, constant(0.0), body), join)

    return types.float32(types.int64, types.int64), generate


@generated
def scale_row(typing: Any, row: Any, factor: Any, weight: Any, target: Any, blocks: Any) -> Any:
    """target[i] = row[i] * factor * weight[i]."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        row, factor, weight, target, blocks = arguments
        factors = splat(builder, factor, FLOATS)

        def body(place: ir.Value, _: ir.Value | None) -> None:
            vector = builder.fmul(load(builder, builder.add(row, place), FLOATS), factors)
            vector = builder.fmul(vector, load(builder, builder.add(weight, place), FLOATS))
            store(builder, vector, builder.add(target, place))

        loop(builder, blocks, None, body)
        return context.get_dummy_value()

    return types.void(types.int64, types.float32, types.int64, types.int64, types.int64), generate


@generated
def quantize_row(typing: Any, row: Any, factor: Any, target: Any, blocks: Any) -> Any:
    """target[i] = round(row[i] * factor) + ZERO_POINT as bytes."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        row, factor, target, blocks = arguments
        factors = splat(builder, factor, FLOATS)
        bytes_ = ir.VectorType(I8, LANES)

        def body(place: ir.Value, _: ir.Value | None) -> None:
            vector = builder.fmul(load(builder, builder.add(row, place), FLOATS), factors)
            rounded = builder.fptosi(call(builder, "llvm.rint.v16f32", FLOATS, [vector]), INTS)
            shifted = builder.add(rounded, ir.Constant(INTS, [ZERO_POINT] * LANES))
            quarter = builder.lshr(place, ir.Constant(I64, 2))
            store(builder, builder.trunc(shifted, bytes_), builder.add(target, quarter), align=1)

        loop(builder, blocks, None, body)
        return context.get_dummy_value()

    return types.void(types.int64, types.float32, types.int64, types.int64), generate


@generated
def hide_end(typing: Any, row: Any, blocks: Any, count: Any) -> Any:
    """row[i] = -inf for all i but the first `count`, at most 16, in place. blocks: at least 1."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        row, blocks, count = arguments
        lanes, kept = ir.Constant(INTS, list(range(LANES))), splat(builder, builder.trunc(count, INTS.element), INTS)

        def body(place: ir.Value, _: ir.Value | None) -> None:
            first = splat(builder, builder.trunc(builder.lshr(place, ir.Constant(I64, 2)), INTS.element), INTS)
            is_kept = builder.icmp_signed("<", builder.add(first, lanes), kept)
            target = builder.add(row, place)
            store(builder, builder.select(is_kept, load(builder, target, FLOATS), constant(float("-inf"))), target)

        loop(builder, blocks, None, body)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@generated
def round_row(typing: Any, row: Any, target: Any, blocks: Any) -> Any:
    """target[i] = row[i] rounded to bfloat16, ties to even. Without AVX512_BF16 the target is float32. The target may
    begin where the row does."""
    return _rounding(range(LANES))


@generated
def round_swapped(typing: Any, row: Any, target: Any, blocks: Any) -> Any:
    """As `round_row`, with the two entries of each pair exchanged."""
    return _rounding([lane ^ 1 for lane in range(LANES)])


def _rounding(lanes: Iterable[int]) -> Any:
    """Type and code of an intrinsic that rounds a row. lanes: places of a vector's entries in the row."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        row, target, blocks = arguments

        def body(place: ir.Value, _: ir.Value | None) -> None:
            upper = rounded_upper(builder, load(builder, builder.add(row, place), INTS))
            upper = builder.shuffle_vector(upper, upper, ir.Constant(INTS, list(lanes)))
            if HAS_BF16:
                narrow = builder.trunc(upper, ir.VectorType(ir.IntType(16), LANES))
                store(builder, narrow, builder.add(target, builder.lshr(place, ir.Constant(I64, 1))), align=2)
            else:
                store(builder, builder.shl(upper, ir.Constant(INTS, [16] * LANES)), builder.add(target, place))

        loop(builder, blocks, None, body)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@generated
def exp_row(typing: Any, row: Any, blocks: Any, highest: Any) -> Any:
    """row[i] = exp(row[i] - highest), in place."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        row, blocks, highest = arguments
        base = splat(builder, highest, FLOATS)

        def body(place: ir.Value, _: ir.Value | None) -> None:
            vector = builder.fsub(load(builder, builder.add(row, place), FLOATS), base)
            store(builder, vector_exp(builder, vector), builder.add(row, place))

        loop(builder, blocks, None, body)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float32), generate


@generated
def gate_row(typing: Any, gate: Any, up: Any, target: Any, blocks: Any) -> Any:
    """target[i] = silu(gate[i]) * up[i]."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        gate, up, target, blocks = arguments

        def body(place: ir.Value, _: ir.Value | None) -> None:
            vector = load(builder, builder.add(gate, place), FLOATS)
            negative = builder.fsub(constant(0.0), vector)
            divisor = builder.fadd(constant(1.0), vector_exp(builder, negative))
            vector = builder.fdiv(vector, divisor)
            vector = builder.fmul(vector, load(builder, builder.add(up, place), FLOATS))
            store(builder, vector, builder.add(target, place))

        loop(builder, blocks, None, body)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.int64), generate


@generated
def fetch_to_write(typing: Any, address: Any) -> Any:
    """Prefetch the cache line at an address for a write."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        prefetch(builder, arguments[0], to_write=True)
        return context.get_dummy_value()

    return types.void(types.int64), generate


@generated
def store_float(typing: Any, address: Any, value: Any) -> Any:
    """Write one float32."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        store(builder, arguments[1], arguments[0])
        return context.get_dummy_value()

    return types.void(types.int64, types.float32), generate


@generated
def store_half(typing: Any, address: Any, value: Any) -> Any:
    """Write one float32 as bfloat16, rounded to the nearest, ties to even."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        upper = rounded_upper(builder, builder.bitcast(arguments[1], I32))
        store(builder, builder.trunc(upper, ir.IntType(16)), arguments[0], align=2)
        return context.get_dummy_value()

    return types.void(types.int64, types.float32), generate


@generated
def float_pointer(typing: Any, address: Any) -> Any:
    """The address as a pointer, for `numba.carray`."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.float32)(types.int64), generate
