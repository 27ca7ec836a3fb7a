"""Matrix tiles of Intel's AMX: 16 rows times 64 inputs times 16 columns of int8 in one instruction.

A processor with AMX has eight tile registers of 16 lines of 64 bytes. A tile of a weight is 16 steps of a block, as
`tiles` describes them; a tile of rows is 64 bytes of each of 16 rows. The sums are int32 and exact, so the results have
the same bits as those of the other int8 tiles.

Linux lets a process use AMX only after it has asked (`is_permitted`). A thread that computes with it calls `configure`
before, and `release` after, so that the system need not save its tile registers any longer.
"""

from __future__ import annotations

import ctypes
import functools
import platform
from collections.abc import Sequence

from llvmlite import ir
from numba import types

from pipeline.engine.torch.lean.compilation import emitted
from pipeline.engine.torch.lean.tile_steps import FEATURES, HAS_VNNI
from pipeline.engine.torch.lean.tiles import MAX_BLOCKS, PREFETCH_LOCALITY, int8_tile, store_results, tile_function
from pipeline.engine.torch.lean.vectors import I8, I16, I64, INTS, LANES, call, load, offset, prefetch
from pipeline.engine.torch.lean.vectors import loop as for_each_line

# The rows of the int8 tiles with VNNI have the form that AMX reads.
HAS_AMX = HAS_VNNI and "+amx-int8" in FEATURES
# Steps of a block in one tile. A matrix with another number of steps is not computed with AMX.
STEPS = 16
# Rows of a tile. The memory of all ROWS rows must be readable, even if fewer are used. If rows are divided equally
# among the fewest possible tiles, no tile reads beyond the next multiple of ROWS.
ROWS = 16
_LINE_BYTES = 4 * LANES
# Registers: the sums of each block, the weights of each block, the rows.
_SUMS, _WEIGHTS = range(MAX_BLOCKS), range(MAX_BLOCKS, 2 * MAX_BLOCKS)
_ROW_REGISTER = 2 * MAX_BLOCKS
# arch_prctl, its request for a feature, and the number of the feature: the contents of tile registers.
_ARCH_PRCTL, _REQUEST, _TILE_DATA = 158, 0x1023, 18


@functools.cache
def is_permitted() -> bool:
    """Whether this process may use AMX. Asks the system for it."""
    if not HAS_AMX or platform.system() != "Linux":
        return False
    return bool(ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST, _TILE_DATA) == 0)


def _call(builder: ir.IRBuilder, name: str, *arguments: ir.Value) -> None:
    call(builder, f"llvm.x86.{name}", ir.VoidType(), list(arguments))


def _register(number: int) -> ir.Constant:
    return ir.Constant(I8, number)


def _pointer(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    return builder.inttoptr(address, I8.as_pointer())


@emitted(types.void)
def configure(builder: ir.IRBuilder) -> None:
    """Give all tile registers of this thread 16 lines of 64 bytes."""
    if not HAS_AMX:
        return
    kind = ir.LiteralStructType([I8, ir.ArrayType(I8, 15), ir.ArrayType(I16, 16), ir.ArrayType(I8, 16)])
    palette, unused = 1, [0] * 8
    name = "lean_amx_configuration"
    place = builder.module.globals.get(name)
    if place is None:
        place = ir.GlobalVariable(builder.module, kind, name)
        place.global_constant, place.linkage = True, "linkonce_odr"
        place.initializer = ir.Constant(kind, [palette, [0] * 15, [_LINE_BYTES] * 8 + unused, [ROWS] * 8 + unused])
    _call(builder, "ldtilecfg", builder.bitcast(place, I8.as_pointer()))


@emitted(types.void)
def release(builder: ir.IRBuilder) -> None:
    """Free the tile registers of this thread."""
    if HAS_AMX:
        _call(builder, "tilerelease")


def _prefetch(
    builder: ir.IRBuilder, ahead: ir.Value, ahead_stride: ir.Value, block_stride: ir.Value, blocks: int
) -> None:
    """Prefetch the lines of STEPS steps of `ahead_stride` bytes, of each block."""
    count = builder.udiv(builder.add(ahead_stride, ir.Constant(I64, 3)), ir.Constant(I64, 4))

    def prefetch_line(place: ir.Value, _: ir.Value | None) -> None:
        for block in range(blocks):
            prefetch(builder, offset(builder, builder.add(ahead, place), block, block_stride), PREFETCH_LOCALITY)

    for_each_line(builder, count, None, prefetch_line)


def _tile(builder: ir.IRBuilder, arguments: Sequence[ir.Value], sums: ir.Value, blocks: int) -> None:
    """Emit the code of a tile of rows and `blocks` blocks. sums: address of [blocks, ROWS, LANES] int32."""
    row, row_stride, weight, block_stride, step_stride, steps, start = arguments[:7]
    ahead, ahead_stride, rows = arguments[14:17]
    entry, loop, done = builder.block, builder.append_basic_block("steps"), builder.append_basic_block("sums")
    for block in range(blocks):
        _call(builder, "tilezero", _register(_SUMS[block]))
    builder.branch(loop)
    builder.position_at_end(loop)
    index = builder.phi(I64)
    index.add_incoming(ir.Constant(I64, 0), entry)
    _prefetch(builder, offset(builder, ahead, index, ahead_stride), ahead_stride, block_stride, blocks)
    _call(
        builder, "tileloadd64", _register(_ROW_REGISTER), _pointer(builder, offset(builder, row, index, 4)), row_stride
    )
    for block in range(blocks):
        place = offset(builder, offset(builder, weight, index, step_stride), block, block_stride)
        _call(builder, "tileloadd64", _register(_WEIGHTS[block]), _pointer(builder, place), step_stride)
        _call(builder, "tdpbusd", *map(_register, (_SUMS[block], _ROW_REGISTER, _WEIGHTS[block])))
    following = builder.add(index, ir.Constant(I64, STEPS))
    index.add_incoming(following, builder.block)
    builder.cbranch(builder.icmp_signed("<", following, steps), loop, done)
    builder.position_at_end(done)
    line_bytes = ir.Constant(I64, _LINE_BYTES)
    places = [offset(builder, sums, ROWS * block, _LINE_BYTES) for block in range(blocks)]
    first = [load(builder, offset(builder, start, block, _LINE_BYTES), INTS) for block in range(blocks)]
    for place, register in zip(places, _SUMS, strict=False):
        _call(builder, "tilestored64", _register(register), _pointer(builder, place), line_bytes)

    def store_row(line: ir.Value, _: ir.Value | None) -> None:
        values = [load(builder, builder.add(place, line), INTS) for place in places]
        values = [builder.add(value, initial) for value, initial in zip(values, first, strict=True)]
        store_results(builder, arguments, builder.udiv(line, line_bytes), values)

    for_each_line(builder, rows, None, store_row)


def _define(builder: ir.IRBuilder, arguments: Sequence[ir.Value]) -> None:
    memory = builder.alloca(ir.ArrayType(INTS, MAX_BLOCKS * ROWS))
    memory.align = 64
    sums = builder.ptrtoint(memory, I64)
    is_wide = builder.icmp_signed("==", arguments[-1], ir.Constant(I64, MAX_BLOCKS))
    with builder.if_else(is_wide) as (wide, narrow):
        with wide:
            _tile(builder, arguments, sums, MAX_BLOCKS)
        with narrow:
            _tile(builder, arguments, sums, 1)


# Takes up to ROWS rows. Never called where `is_permitted` returns False.
amx_tile = tile_function("lean_amx_tile", _define) if HAS_AMX else int8_tile
