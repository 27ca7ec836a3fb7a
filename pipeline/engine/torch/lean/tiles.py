"""Matrix tiles as LLVM code: a few rows times a few blocks of 16 output columns, in registers.

Every output is one chain of multiply-adds over the inputs in their order, so its bits do not depend on the number of
rows. A weight is stored in blocks of 16 columns; a step of a block is 64 bytes:

    float32    [block, input, 16 columns]
    bfloat16   [block, input / 2, 16 columns, 2 inputs]     rows: bfloat16
    int16      [block, input / 2, 16 columns, 2 inputs]     rows: int16
    int8       [block, input / 4, 16 columns, 4 inputs]     rows: bytes with zero point ZERO_POINT

A step of a row is 4 bytes in all of them, but 8 in bfloat16 without USES_BF16. `tile_steps` has its products.

Each tile prefetches weights that its thread needs next.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llvmlite import ir
from numba import types

from pipeline.engine.torch.lean import tile_steps
from pipeline.engine.torch.lean.compilation import emitted
from pipeline.engine.torch.lean.tile_steps import HAS_AVX2, HAS_AVX512, HAS_AVX_VNNI, HAS_VNNI, USES_BF16
from pipeline.engine.torch.lean.vectors import FLOATS, I32, I64, INTS, LANES, load, offset, prefetch, splat, store

# Prefetch hint of weights. Zen 5 does not keep lines of kind 0 in the level 3 cache, so weights do not evict the KV
# cache. Zen 4 puts such lines into its level 1 cache, which is too small for the weights of a task.
PREFETCH_LOCALITY = 0 if tile_steps.PROCESSOR == "znver5" else 2
# Accumulators fill the vector registers: 32 of 64 bytes, else 16 of 32, of which AVX2's products of int8 take seven.
MAX_ROWS, MAX_BLOCKS = (8, 3) if HAS_AVX512 else (6, 1) if HAS_AVX_VNNI else (4, 1)

_NUM_ARGUMENTS = 18


@dataclass(frozen=True, slots=True)
class _Kind:
    """One kind of tile. integer: whether sums are int32, scaled at the end. from_start: whether sums begin with a value
    per column that cancels the zero point of 128; otherwise they begin with 0. row_step: bytes of a step of a row."""

    step: tile_steps.Step
    integer: bool = False
    from_start: bool = False
    row_step: int = 4


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


def _callable(name: str, kind: _Kind) -> Callable[..., None]:
    return tile_function(f"lean_{name}_tile", functools.partial(_define, kind))


_BYTE_SUM, _SHORT_SUM = tile_steps.BYTE_SUM, tile_steps.SHORT_SUM
float32_tile = _callable("float32", _Kind(tile_steps.float_step))
bf16_tile = _callable("bf16", _Kind(tile_steps.bf16_step))
widening_tile = _callable("widening", _Kind(tile_steps.widening_step, row_step=8))
bfloat16_tile = bf16_tile if USES_BF16 else widening_tile
vnni_tile = _callable("vnni", _Kind(tile_steps.vnni_step(_BYTE_SUM), integer=True, from_start=True))
avx_vnni_tile = _callable("avx_vnni", _Kind(tile_steps.avx_vnni_step(_BYTE_SUM), integer=True, from_start=True))
avx2_tile = _callable("avx2", _Kind(tile_steps.avx2_step, integer=True))
plain_int8_tile = _callable("int8", _Kind(tile_steps.plain_step(tile_steps.BYTES), integer=True))
vnni_int16_tile = _callable("vnni_int16", _Kind(tile_steps.vnni_step(_SHORT_SUM), integer=True))
avx_vnni_int16_tile = _callable("avx_vnni_int16", _Kind(tile_steps.avx_vnni_step(_SHORT_SUM), integer=True))
avx2_int16_tile = _callable("avx2_int16", _Kind(tile_steps.avx2_int16_step, integer=True))
plain_int16_tile = _callable("int16", _Kind(tile_steps.plain_step(tile_steps.SHORT_PAIRS), integer=True))
if HAS_VNNI:
    int8_tile, int16_tile = vnni_tile, vnni_int16_tile
elif HAS_AVX_VNNI:
    int8_tile, int16_tile = avx_vnni_tile, avx_vnni_int16_tile
elif HAS_AVX2:
    int8_tile, int16_tile = avx2_tile, avx2_int16_tile
else:
    int8_tile, int16_tile = plain_int8_tile, plain_int16_tile
