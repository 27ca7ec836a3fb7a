"""Matrix tiles as LLVM code: a few rows times a few blocks of 16 output columns, in registers.

Every output is one chain of multiply-adds over the inputs in their order, so its bits do not depend on the number of
rows. A weight is stored in blocks of 16 columns; a step of a block is 64 bytes:

    float32    [block, input, 16 columns]
    bfloat16   [block, input / 2, 16 columns, 2 inputs]     rows: bfloat16
    int16      [block, input / 2, 16 columns, 2 inputs]     rows: int16
    int8       [block, input / 4, 16 columns, 4 inputs]     rows: bytes with zero point ZERO_POINT

A step of a row is 4 bytes in all of them, but 8 in bfloat16 without AVX512_BF16.

bfloat16 products are exact in float32, in which they are summed, the second input of a step before the first, as
AVX512_BF16 does it. Processors without it read rows of bfloat16 numbers stored as float32, and widen the weights. Their
sums have the same bits except where a number is below 2^-126, which AVX512_BF16 counts as 0.

int8 sums are exact on every CPU. VNNI sums four products of an unsigned and a signed byte in int32; the initial sums
cancel the row's zero point. AVX2 sums two such products in int16 with saturation, which magnitudes of at most 128 and
127 do not reach; so the sign of the row moves to the weight (as in llama.cpp). Other processors widen bytes to int32.

int16 sums are int32, too. The caller keeps them below 2^31.

Each tile prefetches weights that its thread needs next.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llvmlite import ir
from numba import types
from numba.core.registry import cpu_target

from pipeline.engine.torch.lean.compilation import emitted
from pipeline.engine.torch.lean.vectors import (
    FLOATS,
    I8,
    I16,
    I32,
    I64,
    INTS,
    LANES,
    PAIRS,
    SHORTS,
    call,
    load,
    offset,
    prefetch,
    splat,
    store,
)

# The processor that numba compiles for: this machine's, unless NUMBA_CPU_NAME and NUMBA_CPU_FEATURES name another.
_, _PROCESSOR, _LIST = cpu_target.target_context.codegen().magic_tuple()
FEATURES = frozenset(_LIST.split(","))
_WIDE = "+avx512f" in FEATURES
HAS_VNNI = _WIDE and "+avx512vnni" in FEATURES
HAS_BF16 = _WIDE and "+avx512bf16" in FEATURES
HAS_AVX2 = "+avx2" in FEATURES
# Zero point of the bytes of an int8 row.
ZERO_POINT = 128 if HAS_VNNI else 0
# Prefetch hint of weights. Zen 5 does not keep lines of kind 0 in the level 3 cache, so weights do not evict the KV
# cache. Zen 4 puts such lines into its level 1 cache, which is too small for the weights of a task.
PREFETCH_LOCALITY = 0 if _PROCESSOR == "znver5" else 2
# Accumulators fill the vector registers: 32 of 64 bytes, else 16 of 32.
MAX_ROWS, MAX_BLOCKS = (8, 3) if _WIDE else (4, 1)

_BYTES = ir.VectorType(I8, 4 * LANES)
_SHORT_PAIRS = ir.VectorType(I16, 2 * LANES)
_HALF_BYTES = ir.VectorType(I8, 2 * LANES)
_HALF_INTS = ir.VectorType(I32, LANES // 2)
_SUM = "llvm.x86.avx512.vpdpbusd.512"
# The instruction with saturation, whose limit no sum reaches. LLVM 20 replaces the other one by two in large tiles.
_SHORT_SUM = "llvm.x86.avx512.vpdpwssds.512"
_NUM_ARGUMENTS = 18

# (builder, partial sum, a step of the row as int32, vector of the weight as ints) -> new sum
Step = Callable[[ir.IRBuilder, ir.Value, list[ir.Value], ir.Value], ir.Value]


@dataclass(frozen=True, slots=True)
class _Kind:
    """One kind of tile. integer: whether sums are int32, scaled at the end. from_start: whether sums begin with a value
    per column that cancels the zero point of 128; otherwise they begin with 0. row_step: bytes of a step of a row."""

    name: str
    step: Step
    integer: bool
    from_start: bool = False
    row_step: int = 4


def _float_step(builder: ir.IRBuilder, total: ir.Value, entry: list[ir.Value], weight: ir.Value) -> ir.Value:
    row = splat(builder, builder.bitcast(entry[0], FLOATS.element), FLOATS)
    return call(builder, "llvm.fma.v16f32", FLOATS, [row, builder.bitcast(weight, FLOATS), total])


def _bf16_step(builder: ir.IRBuilder, total: ir.Value, entry: list[ir.Value], weight: ir.Value) -> ir.Value:
    factors = [builder.bitcast(vector, PAIRS) for vector in (splat(builder, entry[0], INTS), weight)]
    return call(builder, "llvm.x86.avx512bf16.dpbf16ps.512", FLOATS, [total, *factors])


def _widening_step(builder: ir.IRBuilder, total: ir.Value, entry: list[ir.Value], weight: ir.Value) -> ir.Value:
    # A bfloat16 is the upper half of a float32.
    second = builder.and_(weight, ir.Constant(INTS, [0xFFFF0000] * LANES))
    first = builder.shl(weight, ir.Constant(INTS, [16] * LANES))
    total = _float_step(builder, total, entry[1:], second)
    return _float_step(builder, total, entry[:1], first)


def _vnni_step(builder: ir.IRBuilder, total: ir.Value, entry: list[ir.Value], weight: ir.Value) -> ir.Value:
    return call(builder, _SUM, INTS, [total, splat(builder, entry[0], INTS), weight])


def _avx2_step(builder: ir.IRBuilder, total: ir.Value, entry: list[ir.Value], weight: ir.Value) -> ir.Value:
    row = builder.bitcast(splat(builder, entry[0], _HALF_INTS), _HALF_BYTES)
    magnitude = call(builder, "llvm.abs.v32i8", _HALF_BYTES, [row, ir.Constant(ir.IntType(1), 0)])
    ones = ir.Constant(SHORTS, [1] * LANES)
    sums = []
    for part in _halves(builder, weight):
        signed = call(builder, "llvm.x86.avx2.psign.b", _HALF_BYTES, [builder.bitcast(part, _HALF_BYTES), row])
        pairs = call(builder, "llvm.x86.avx2.pmadd.ub.sw", SHORTS, [magnitude, signed])
        sums.append(call(builder, "llvm.x86.avx2.pmadd.wd", _HALF_INTS, [pairs, ones]))
    return builder.add(total, builder.shuffle_vector(*sums, ir.Constant(INTS, list(range(LANES)))))


def _plain_step(kind: ir.VectorType) -> Step:
    """Widens the integers of a step, which are elements of `kind`, to int32."""
    parts = kind.count // LANES

    def step(builder: ir.IRBuilder, total: ir.Value, entry: list[ir.Value], weight: ir.Value) -> ir.Value:
        factors = [builder.bitcast(vector, kind) for vector in (splat(builder, entry[0], INTS), weight)]
        undefined = ir.Constant(kind, ir.Undefined)
        for part in range(parts):
            places = ir.Constant(INTS, [parts * lane + part for lane in range(LANES)])
            row, column = (builder.sext(builder.shuffle_vector(factor, undefined, places), INTS) for factor in factors)
            total = builder.add(total, builder.mul(row, column))
        return total

    return step


def _vnni_short_step(builder: ir.IRBuilder, total: ir.Value, entry: list[ir.Value], weight: ir.Value) -> ir.Value:
    return call(builder, _SHORT_SUM, INTS, [total, splat(builder, entry[0], INTS), weight])


def _avx2_short_step(builder: ir.IRBuilder, total: ir.Value, entry: list[ir.Value], weight: ir.Value) -> ir.Value:
    row = builder.bitcast(splat(builder, entry[0], _HALF_INTS), SHORTS)
    sums = [
        call(builder, "llvm.x86.avx2.pmadd.wd", _HALF_INTS, [row, builder.bitcast(half, SHORTS)])
        for half in _halves(builder, weight)
    ]
    return builder.add(total, builder.shuffle_vector(*sums, ir.Constant(INTS, list(range(LANES)))))


def _halves(builder: ir.IRBuilder, vector: ir.Value) -> list[ir.Value]:
    """The two halves of a vector of ints."""
    undefined = ir.Constant(INTS, ir.Undefined)
    numbers = [list(range(first, first + LANES // 2)) for first in (0, LANES // 2)]
    return [builder.shuffle_vector(vector, undefined, ir.Constant(_HALF_INTS, half)) for half in numbers]


def _tile(builder: ir.IRBuilder, arguments: list[ir.Value], kind: _Kind, rows: int, blocks: int) -> None:
    """Emit the code of a tile of `rows` rows and `blocks` blocks."""
    row, row_stride, weight, block_stride, step_stride, steps, start = arguments[:7]
    ahead, ahead_stride = arguments[14:16]
    entry, loop, done = builder.block, builder.append_basic_block("steps"), builder.append_basic_block("sums")
    sum_type = INTS if kind.integer else FLOATS
    vector_bytes = 4 * LANES
    first = [
        load(builder, offset(builder, start, block, vector_bytes), INTS)
        if kind.from_start
        else ir.Constant(sum_type, [0] * LANES)
        for block in range(blocks)
    ]
    builder.branch(loop)
    builder.position_at_end(loop)
    index = builder.phi(I64)
    index.add_incoming(ir.Constant(I64, 0), entry)
    sums = [[builder.phi(sum_type) for _ in range(blocks)] for _ in range(rows)]
    for line in sums:
        for phi, value in zip(line, first, strict=True):
            phi.add_incoming(value, entry)
    place = offset(builder, weight, index, step_stride)
    weights = [load(builder, offset(builder, place, block, block_stride), INTS) for block in range(blocks)]
    for block in range(blocks):
        line = offset(builder, offset(builder, ahead, index, ahead_stride), block, block_stride)
        prefetch(builder, line, PREFETCH_LOCALITY)
    entries = offset(builder, row, index, kind.row_step)
    results = []
    for number in range(rows):
        address = offset(builder, entries, number, row_stride)
        values = [load(builder, offset(builder, address, part, 4), I32) for part in range(kind.row_step // 4)]
        results.append([kind.step(builder, sums[number][block], values, weights[block]) for block in range(blocks)])
    following = builder.add(index, ir.Constant(I64, 1))
    index.add_incoming(following, loop)
    for line, line_results in zip(sums, results, strict=True):
        for phi, value in zip(line, line_results, strict=True):
            phi.add_incoming(value, loop)
    builder.cbranch(builder.icmp_signed("<", following, steps), loop, done)
    builder.position_at_end(done)
    for number, line in enumerate(results):
        store_results(builder, arguments, number, line)


def store_results(
    builder: ir.IRBuilder, arguments: Sequence[ir.Value], number: ir.Value | int, sums: list[ir.Value]
) -> None:
    """Emit code that scales the sums of a row, if they are integers, and stores its results. arguments: of
    `tile_function`. number: of the row. sums: a vector per block."""
    scale, bias, row_scale, base, base_stride, out, out_stride = arguments[7:14]
    is_integer = sums[0].type == INTS
    if is_integer:
        own_scale = splat(builder, load(builder, offset(builder, row_scale, number, 4), FLOATS.element), FLOATS)
    for block, value in enumerate(sums):
        if is_integer:
            scales = load(builder, offset(builder, scale, block, 4 * LANES), FLOATS)
            value = builder.fmul(builder.fmul(builder.sitofp(value, FLOATS), scales), own_scale)
        value = builder.fadd(value, load(builder, offset(builder, bias, block, 4 * LANES), FLOATS))
        below = offset(builder, offset(builder, base, number, base_stride), block, 4 * LANES)
        target = offset(builder, offset(builder, out, number, out_stride), block, 4 * LANES)
        store(builder, builder.fadd(load(builder, below, FLOATS), value), target)


def _define(kind: _Kind, builder: ir.IRBuilder, arguments: Sequence[ir.Value]) -> None:
    *operands, rows, blocks = arguments
    end = builder.append_basic_block("end")
    size = builder.add(builder.mul(rows, ir.Constant(I64, MAX_BLOCKS + 1)), blocks)
    choice = builder.switch(size, end)
    for num_rows in range(1, MAX_ROWS + 1):
        for num_blocks in sorted({1, MAX_BLOCKS}):
            block = builder.append_basic_block(f"tile_{num_rows}_{num_blocks}")
            choice.add_case(ir.Constant(I64, num_rows * (MAX_BLOCKS + 1) + num_blocks), block)
            builder.position_at_end(block)
            _tile(builder, operands, kind, num_rows, num_blocks)
            builder.branch(end)
    builder.position_at_end(end)


def tile_function(name: str, define: Callable[[ir.IRBuilder, Sequence[ir.Value]], None]) -> Callable[..., None]:
    """A tile for calls from compiled code. define: emits its code. Arguments, with addresses and strides in bytes:

    row, row_stride, weight, block_stride, step_stride, steps (at least 1), start (int8: initial sums, int32 per
    column), scale (int8: float32 per column), bias (float32 per column), row_scale (int8: float32 per row), base,
    base_stride (values to add to the result), out, out_stride, ahead, ahead_stride (weights to prefetch, and their
    bytes per step), rows (up to MAX_ROWS), blocks (1 or MAX_BLOCKS).

    Each module has one function, which branches to the tile of the given size. Inlining it into every caller would
    multiply the compile time."""

    @emitted(types.void, *[types.int64] * _NUM_ARGUMENTS)
    def tile(builder: ir.IRBuilder, *arguments: ir.Value) -> None:
        function = builder.module.globals.get(name)
        if function is None:
            signature = ir.FunctionType(ir.VoidType(), [I64] * _NUM_ARGUMENTS)
            function = ir.Function(builder.module, signature, name)
            function.linkage = "linkonce_odr"
            function.attributes.add("noinline")
            inner = ir.IRBuilder(function.append_basic_block("entry"))
            define(inner, function.args)
            inner.ret_void()
        builder.call(function, arguments)

    return tile


def _callable(kind: _Kind) -> Callable[..., None]:
    return tile_function(kind.name, functools.partial(_define, kind))


float32_tile = _callable(_Kind("lean_float32_tile", _float_step, integer=False))
bf16_tile = _callable(_Kind("lean_bf16_tile", _bf16_step, integer=False))
widening_tile = _callable(_Kind("lean_widening_tile", _widening_step, integer=False, row_step=8))
bfloat16_tile = bf16_tile if HAS_BF16 else widening_tile
vnni_tile = _callable(_Kind("lean_vnni_tile", _vnni_step, integer=True, from_start=True))
avx2_tile = _callable(_Kind("lean_avx2_tile", _avx2_step, integer=True))
plain_int8_tile = _callable(_Kind("lean_int8_tile", _plain_step(_BYTES), integer=True))
int8_tile = vnni_tile if HAS_VNNI else avx2_tile if HAS_AVX2 else plain_int8_tile
vnni_int16_tile = _callable(_Kind("lean_vnni_int16_tile", _vnni_short_step, integer=True))
avx2_int16_tile = _callable(_Kind("lean_avx2_int16_tile", _avx2_short_step, integer=True))
plain_int16_tile = _callable(_Kind("lean_int16_tile", _plain_step(_SHORT_PAIRS), integer=True))
int16_tile = vnni_int16_tile if HAS_VNNI else avx2_int16_tile if HAS_AVX2 else plain_int16_tile
