"""Compiles the kernels for a GPU, without one: a program of its own, because tests interpret them."""

from __future__ import annotations

from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from pipeline.engine.torch.gpu import attention, cache, kernels

# Consumer cards of the generation Ampere, which have the least shared memory.
CAPABILITY = 86
SIZES = {"DIM": 128, "LANES": 128}


def kernel_variants(kind: str, keys: int) -> list[tuple[Any, dict[str, str], dict[str, Any]]]:
    """Kernels with the types of their pointers, other arguments being integers, and their constants. kind: of the
    model's tensors. keys: of a block of attention."""
    tables = {"rows": "*i32", "tiles": "*i32", "table": "*i32", "wanted": "*i32"}
    model = dict.fromkeys(("qkv", "keys", "values", "delta", "weight", "gate_up", "query_norm", "key_norm"), f"*{kind}")
    floats = {
        "epsilon": "fp32",
        "scale": "fp32",
        "x": "*fp32",
        "rotation": "*fp32",
        "partial": "*fp32",
        "sums": "*fp32",
    }
    types = tables | model | floats | {"result": f"*{kind}"}
    heads = {"NUM_HEADS": 32, "NUM_KV_HEADS": 8, "HALF": 64, "HAS_NORMS": True, "HEADS": 8, "LANES": 64}
    group = {"NUM_KV_HEADS": 8, "GROUP": 4, "KEYS": keys, **SIZES}
    return [
        (kernels._norm, types, {"HAS_DELTA": True, "HAS_WANTED": False, "BLOCK": 4096}),
        (kernels._norm, types, {"HAS_DELTA": True, "HAS_WANTED": True, "BLOCK": 4096}),
        (kernels._rotate, types, heads),
        (kernels._gate, types, {"BLOCK": 1024}),
        (attention._attend, types, {**group, "WINDOW": 0, "PARTS": 16, "ROWS": 16}),
        (attention._attend, types | {"partial": f"*{kind}"}, {**group, "WINDOW": 4096, "PARTS": 1, "ROWS": 64}),
        (attention._join, types, {**SIZES, "PARTS": 16}),
        (cache._move, types, SIZES),
    ]


def main() -> None:
    for kind, keys, num_stages in (("bf16", 64, 2), ("fp32", 32, 1)):
        for kernel, types, constants in kernel_variants(kind, keys):
            names: list[str] = kernel.arg_names
            arguments = {name: "constexpr" if name in constants else types.get(name, "i32") for name in names}
            source = ASTSource(fn=kernel, signature=arguments, constexprs=constants)
            compiled = triton.compile(source, GPUTarget("cuda", CAPABILITY, 32), options={"num_stages": num_stages})
            print(kind, kernel.__name__, compiled.metadata.shared, len(compiled.asm["cubin"]))


if __name__ == "__main__":
    main()
