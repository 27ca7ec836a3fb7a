"""LLVM code for vectors of 16 lanes. Arithmetic is IEEE float32 without contraction; `exp` is a polynomial."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir


class _BFloat16(ir.Type):  # type: ignore[misc]
    """LLVM's type of bfloat16, which llvmlite lacks. Supports no constants."""

    def __str__(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat16)

    def __hash__(self) -> int:
        return hash(_BFloat16)


LANES = 16
I8, I16, I32, I64, F32 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
SHORTS, INTS, FLOATS = (ir.VectorType(element, LANES) for element in (I16, I32, F32))
PAIRS = ir.VectorType(_BFloat16(), 2 * LANES)

_LOG2_E = 1.4426950408889634
# ln 2 in two parts. The high part has few digits, so that n * high is exact in float32.
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
# A float32 between 2^23 and 2^24 has no bits after the binary point. So _MAGIC plus a number below 2^22 is rounded to
# an integer, ties to even. The bits of the sum are _MAGIC_BITS plus the rounded number.
_MAGIC, _MAGIC_BITS = 1.5 * 2**23, 0x4B400000
# exp counts as 0 below _SMALLEST. exp(88) is still a normal float32.
_SMALLEST, LARGEST = -87.0, 88.0
# exp(r) for |r| <= ln(2) / 2: minimax coefficients from the sixth power down. The relative error is below 7e-8.
_EXP = (0.0013941312, 0.0083688246, 0.04166636, 0.1666652, 0.5, 1.0, 1.0)
# 2^f for |f| <= 1/2: minimax coefficients from the third power down, with a relative error below 8e-5.
_ROUGH_EXP2 = (0.05517098, 0.2426097, 0.69326097, 0.99992816)


def padded(count: int) -> int:
    """The next multiple of 16."""
    return -(-count // LANES) * LANES


def splat(builder: ir.IRBuilder, scalar: ir.Value, kind: ir.VectorType) -> ir.Value:
    """A vector with the scalar in every lane."""
    undefined = ir.Constant(kind, ir.Undefined)
    vector = builder.insert_element(undefined, scalar, ir.Constant(I32, 0))
    zeros = ir.Constant(ir.VectorType(I32, kind.count), [0] * kind.count)
    return builder.shuffle_vector(vector, undefined, zeros)


def load(builder: ir.IRBuilder, address: ir.Value, kind: ir.Type) -> ir.Value:
    """The value of this type at an address."""
    value = builder.load(builder.inttoptr(address, kind.as_pointer()))
    value.align = 4
    return value


def store(builder: ir.IRBuilder, value: ir.Value, address: ir.Value, align: int = 4) -> None:
    """Write a value to an address."""
    builder.store(value, builder.inttoptr(address, value.type.as_pointer())).align = align


def prefetch(builder: ir.IRBuilder, address: ir.Value, locality: int = 2, to_write: bool = False) -> None:
    """Prefetch the cache line at an address. Any address is allowed. locality: 2 for the level 2 cache, 0 for data that
    is read once."""
    pointer = builder.inttoptr(address, I8.as_pointer())
    access, level, is_data = (ir.Constant(I32, number) for number in (int(to_write), locality, 1))
    call(builder, "llvm.prefetch.p0", ir.VoidType(), [pointer, access, level, is_data])


def offset(builder: ir.IRBuilder, address: ir.Value, index: ir.Value | int, stride: ir.Value | int) -> ir.Value:
    """address + index * stride, in bytes."""
    index = ir.Constant(I64, index) if isinstance(index, int) else index
    stride = ir.Constant(I64, stride) if isinstance(stride, int) else stride
    return builder.add(address, builder.mul(index, stride))


def call(builder: ir.IRBuilder, name: str, result: ir.Type, arguments: list[ir.Value]) -> ir.Value:
    """Call an LLVM intrinsic or a function of the C library."""
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(result, [value.type for value in arguments]), name)
    return builder.call(function, arguments)


def constant(value: float) -> ir.Constant:
    """A vector with this value in every lane."""
    return ir.Constant(FLOATS, [value] * LANES)


def rounded(builder: ir.IRBuilder, vector: ir.Value) -> ir.Value:
    """The nearest integer in every lane, ties to even, for magnitudes below 2^22."""
    bits = builder.bitcast(builder.fadd(vector, constant(_MAGIC)), INTS)
    return builder.sub(bits, ir.Constant(INTS, [_MAGIC_BITS] * LANES))


def vector_exp(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """exp in every lane, for x up to `LARGEST`. Exactly 0 below `_SMALLEST`, also for -inf."""
    is_zero = builder.fcmp_ordered("<", x, constant(_SMALLEST))
    x = builder.select(is_zero, constant(_SMALLEST), x)
    shifted = call(builder, "llvm.fma.v16f32", FLOATS, [x, constant(_LOG2_E), constant(_MAGIC)])
    power = builder.fsub(shifted, constant(_MAGIC))
    rest = x
    for part in (_LN2_HIGH, _LN2_LOW):
        rest = call(builder, "llvm.fma.v16f32", FLOATS, [power, constant(-part), rest])
    value = _polynomial(builder, _EXP, rest)
    return builder.select(is_zero, constant(0.0), _times_power_of_two(builder, value, shifted))


def rough_exp(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """exp(x) in every lane, within 0.01 % for x from -87 to 0. For smaller x, also -inf, nearly 0. Takes half the time
    of `vector_exp`."""
    x = builder.select(builder.fcmp_ordered("<", x, constant(_SMALLEST)), constant(_SMALLEST), x)
    exponent = builder.fmul(x, constant(_LOG2_E))
    shifted = builder.fadd(exponent, constant(_MAGIC))
    rest = builder.fsub(exponent, builder.fsub(shifted, constant(_MAGIC)))
    return _times_power_of_two(builder, _polynomial(builder, _ROUGH_EXP2, rest), shifted)


def rounded_upper(builder: ir.IRBuilder, bits: ir.Value) -> ir.Value:
    """Upper half of the bits of float32 numbers, rounded to the nearest, ties to even: the bits of bfloat16. LLVM's own
    conversion calls a library function where the processor has no instruction for it."""
    half, one, below = (ir.Constant(INTS, [value] * LANES) for value in (16, 1, 0x7FFF))
    is_odd = builder.and_(builder.lshr(bits, half), one)
    return builder.lshr(builder.add(builder.add(bits, below), is_odd), half)


def _polynomial(builder: ir.IRBuilder, coefficients: Sequence[float], x: ir.Value) -> ir.Value:
    """Value of a polynomial in every lane. coefficients: from the highest power down."""
    value: ir.Value = constant(coefficients[0])
    for coefficient in coefficients[1:]:
        value = call(builder, "llvm.fma.v16f32", FLOATS, [value, x, constant(coefficient)])
    return value


def _times_power_of_two(builder: ir.IRBuilder, value: ir.Value, shifted: ir.Value) -> ir.Value:
    """value * 2^n, by addition of n to the exponent's bits. shifted: n + _MAGIC, whose bits end with those of n."""
    exponents = builder.shl(builder.bitcast(shifted, INTS), ir.Constant(INTS, [23] * LANES))
    return builder.bitcast(builder.add(builder.bitcast(value, INTS), exponents), FLOATS)


def loop(
    builder: ir.IRBuilder,
    blocks: ir.Value,
    carried: ir.Value | None,
    body: Callable[[ir.Value, ir.Value | None], ir.Value | None],
) -> ir.Value | None:
    """Emit a loop that calls body(byte offset, carried value) for every vector of a row. blocks: at least 1. Returns
    the last carried value."""
    entry, loop, done = builder.block, builder.append_basic_block("rows"), builder.append_basic_block("done")
    builder.branch(loop)
    builder.position_at_end(loop)
    index = builder.phi(I64)
    index.add_incoming(ir.Constant(I64, 0), entry)
    phi = None
    if carried is not None:
        phi = builder.phi(carried.type)
        phi.add_incoming(carried, entry)
    result = body(builder.mul(index, ir.Constant(I64, 4 * LANES)), phi)
    following = builder.add(index, ir.Constant(I64, 1))
    index.add_incoming(following, builder.block)
    if phi is not None:
        phi.add_incoming(result, builder.block)
    builder.cbranch(builder.icmp_signed("<", following, blocks), loop, done)
    builder.position_at_end(done)
    return result


def reduce(builder: ir.IRBuilder, vector: ir.Value, join: Callable[[ir.Value, ir.Value], ir.Value]) -> ir.Value:
    """Join the halves of a vector repeatedly, down to one lane."""
    width = LANES
    while width > 1:
        width //= 2
        undefined = ir.Constant(vector.type, ir.Undefined)
        halves = [
            builder.shuffle_vector(
                vector,
                undefined,
                ir.Constant(ir.VectorType(I32, width), list(range(first, first + width))),
            )
            for first in (0, width)
        ]
        vector = join(*halves)
    return builder.extract_element(vector, ir.Constant(I32, 0))


def maximum(builder: ir.IRBuilder) -> Callable[[ir.Value, ir.Value], ir.Value]:
    """A function that emits the larger of two vectors, lane by lane, or of two scalars."""
    return lambda left, right: builder.select(builder.fcmp_ordered(">", right, left), right, left)


def absolute(builder: ir.IRBuilder, vector: ir.Value) -> ir.Value:
    """The absolute value in every lane."""
    bits = builder.and_(builder.bitcast(vector, INTS), ir.Constant(INTS, [0x7FFFFFFF] * LANES))
    return builder.bitcast(bits, FLOATS)
