"""Reading and writing array elements by address, in compiled code.

Numba counts references to arrays whenever they are passed on, which costs more than the work itself in functions that
do a few loads. So the trie's kernels pass addresses (in tuples of numbers) instead. Whoever calls a kernel from
Python owns the arrays and keeps them alive; nothing here checks bounds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic


def _element(builder: Any, address: Any, index: Any, element: Any) -> Any:
    return builder.gep(builder.inttoptr(address, element.as_pointer()), [index])


def _loader(result: Any, element: Any) -> Any:
    def load(typingctx: Any, address: Any, index: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.load(_element(builder, args[0], args[1], element))

        return result(types.int64, types.int64), generate

    return intrinsic(load)


def _storer(value_type: Any, element: Any) -> Any:
    def store(typingctx: Any, address: Any, index: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            builder.store(args[2], _element(builder, args[0], args[1], element))
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, value_type), generate

    return intrinsic(store)


_INT32, _INT64, _FLOAT32 = ir.IntType(32), ir.IntType(64), ir.FloatType()

# Casts, for the compiler's sake.
int32: Any = np.int32
int64: Any = np.int64
float32: Any = np.float32

load32: Any = _loader(types.int32, _INT32)
store32: Any = _storer(types.int32, _INT32)
load64: Any = _loader(types.int64, _INT64)
store64: Any = _storer(types.int64, _INT64)
load_float: Any = _loader(types.float32, _FLOAT32)
store_float: Any = _storer(types.float32, _FLOAT32)


def _prefetch(typingctx: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], ir.IntType(8).as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, _INT32, _INT32, _INT32])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], kind)
        read, keep, data = (ir.Constant(_INT32, value) for value in (0, 3, 1))
        builder.call(function, [pointer, read, keep, data])
        return context.get_dummy_value()

    return types.void(types.int64), generate


# Ask for the cache line at an address, without waiting.
prefetch: Any = intrinsic(_prefetch)
