"""The processor's instruction sets, and the products of one step of a matrix tile with each of them.

A step takes 4 bytes of a row (8 for `widening_step`) and 64 bytes of a weight, see `tiles`.

bfloat16 products are exact in float32, in which they are summed, the second input of a step before the first, as
AVX512_BF16 does it. Only AMD's processors use it: on Intel's, `widening_step` is faster. That one reads rows of
bfloat16 numbers stored as float32, and widens the weights. Its sums have the same bits except where a number is below
2^-126, which AVX512_BF16 counts as 0.

int8 sums are exact on every CPU. VNNI, a part of AVX-512 and an extension of AVX2 (AVX-VNNI), sums four products of an
unsigned and a signed byte in int32; the initial sums cancel the row's zero point. AVX2 alone sums two such products in
int16 with saturation, which magnitudes of at most 128 and 127 do not reach; so the sign of the row moves to the weight
(as in llama.cpp). Other processors widen bytes to int32.

int16 sums are int32, too. The caller keeps them below 2^31.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir
from numba.core.registry import cpu_target

from pipeline.engine.torch.lean.vectors import FLOATS, I8, I16, I32, INTS, LANES, PAIRS, SHORTS, call, splat

# The processor that numba compiles for: this machine's, unless NUMBA_CPU_NAME and NUMBA_CPU_FEATURES name another.
_, PROCESSOR, _LIST = cpu_target.target_context.codegen().magic_tuple()
FEATURES = frozenset(_LIST.split(","))
HAS_AVX512 = "+avx512f" in FEATURES
HAS_VNNI = HAS_AVX512 and "+avx512vnni" in FEATURES
HAS_BF16 = HAS_AVX512 and "+avx512bf16" in FEATURES
USES_BF16 = HAS_BF16 and PROCESSOR.startswith("znver")
HAS_AVX_VNNI = "+avxvnni" in FEATURES
HAS_AVX2 = "+avx2" in FEATURES
# Zero point of the bytes of an int8 row.
ZERO_POINT = 128 if HAS_VNNI or HAS_AVX_VNNI else 0

# Types of the vectors of integers that `plain_step` widens.
BYTES = ir.VectorType(I8, 4 * LANES)
SHORT_PAIRS = ir.VectorType(I16, 2 * LANES)
# Instructions of `vnni_step` and `avx_vnni_step`. SHORT_SUM saturates, but no sum reaches its limit. LLVM 20 replaces
# the instruction without saturation by two in large tiles.
BYTE_SUM, SHORT_SUM = "llvm.x86.avx512.vpdpbusd", "llvm.x86.avx512.vpdpwssds"
_HALF_BYTES = ir.VectorType(I8, 2 * LANES)
_HALF_INTS = ir.VectorType(I32, LANES // 2)

# (builder, partial sum, a step of the row as int32, vector of the weight as ints) -> new sum
Step = Callable[[ir.IRBuilder, ir.Value, list[ir.Value], ir.Value], ir.Value]


def float_step(builder: ir.IRBuilder, total: ir.Value, entry: list[ir.Value], weight: ir.Value) -> ir.Value:
    """One product of float32."""
    row = splat(builder, builder.bitcast(entry[0], FLOATS.element), FLOATS)
    return call(builder, "llvm.fma.v16f32", FLOATS, [row, builder.bitcast(weight, FLOATS), total])


def bf16_step(builder: ir.IRBuilder, total: ir.Value, entry: list[ir.Value], weight: ir.Value) -> ir.Value:
    """Two products of bfloat16 with AVX512_BF16."""
    factors = [builder.bitcast(vector, PAIRS) for vector in (splat(builder, entry[0], INTS), weight)]
    return call(builder, "llvm.x86.avx512bf16.dpbf16ps.512", FLOATS, [total, *factors])


def widening_step(builder: ir.IRBuilder, total: ir.Value, entry: list[ir.Value], weight: ir.Value) -> ir.Value:
    """Two products of a row in float32 and a weight in bfloat16."""
    # A bfloat16 is the upper half of a float32.
    second = builder.and_(weight, ir.Constant(INTS, [0xFFFF0000] * LANES))
    first = builder.shl(weight, ir.Constant(INTS, [16] * LANES))
    total = float_step(builder, total, entry[1:], second)
    return float_step(builder, total, entry[:1], first)


def vnni_step(instruction: str) -> Step:
    """Products with AVX-512. instruction: BYTE_SUM or SHORT_SUM."""

    def step(builder: ir.IRBuilder, total: ir.Value, entry: list[ir.Value], weight: ir.Value) -> ir.Value:
        return call(builder, f"{instruction}.512", INTS, [total, splat(builder, entry[0], INTS), weight])

    return step


def avx_vnni_step(instruction: str) -> Step:
    """The same without AVX-512."""

    def step(builder: ir.IRBuilder, total: ir.Value, entry: list[ir.Value], weight: ir.Value) -> ir.Value:
        row = splat(builder, entry[0], _HALF_INTS)
        halves = zip(_halves(builder, total), _halves(builder, weight), strict=True)
        sums = [call(builder, f"{instruction}.256", _HALF_INTS, [old, row, part]) for old, part in halves]
        return _whole(builder, sums)

    return step


def avx2_step(builder: ir.IRBuilder, total: ir.Value, entry: list[ir.Value], weight: ir.Value) -> ir.Value:
    """Four products of int8."""
    row = builder.bitcast(splat(builder, entry[0], _HALF_INTS), _HALF_BYTES)
    magnitude = call(builder, "llvm.abs.v32i8", _HALF_BYTES, [row, ir.Constant(ir.IntType(1), 0)])
    ones = ir.Constant(SHORTS, [1] * LANES)
    sums = []
    for part in _halves(builder, weight):
        signed = call(builder, "llvm.x86.avx2.psign.b", _HALF_BYTES, [builder.bitcast(part, _HALF_BYTES), row])
        pairs = call(builder, "llvm.x86.avx2.pmadd.ub.sw", SHORTS, [magnitude, signed])
        sums.append(call(builder, "llvm.x86.avx2.pmadd.wd", _HALF_INTS, [pairs, ones]))
    return builder.add(total, _whole(builder, sums))


def avx2_int16_step(builder: ir.IRBuilder, total: ir.Value, entry: list[ir.Value], weight: ir.Value) -> ir.Value:
    """Two products of int16."""
    row = builder.bitcast(splat(builder, entry[0], _HALF_INTS), SHORTS)
    sums = [
        call(builder, "llvm.x86.avx2.pmadd.wd", _HALF_INTS, [row, builder.bitcast(half, SHORTS)])
        for half in _halves(builder, weight)
    ]
    return builder.add(total, _whole(builder, sums))


def plain_step(kind: ir.VectorType) -> Step:
    """Products on any processor: the integers of a step, which are elements of `kind`, are widened to int32."""
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


def _halves(builder: ir.IRBuilder, vector: ir.Value) -> list[ir.Value]:
    """The two halves of a vector of ints."""
    undefined = ir.Constant(INTS, ir.Undefined)
    numbers = [list(range(first, first + LANES // 2)) for first in (0, LANES // 2)]
    return [builder.shuffle_vector(vector, undefined, ir.Constant(_HALF_INTS, half)) for half in numbers]


def _whole(builder: ir.IRBuilder, halves: list[ir.Value]) -> ir.Value:
    """The vector of ints with these halves."""
    return builder.shuffle_vector(*halves, ir.Constant(INTS, list(range(LANES))))
