"""Kernels of a layer between its matrix products: norms, rotary embedding, and gate.

A row is a token of the pass. Arithmetic is in float32, whatever the type of the tensors.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from pipeline.engine.torch.gpu import pass_table

# Columns of the table of rows as constants of kernels.
_FIELDS, _SLOT = tl.constexpr(pass_table.NUM_FIELDS), tl.constexpr(pass_table.SLOT)
_POSITION, _PLACE = tl.constexpr(pass_table.POSITION), tl.constexpr(pass_table.PLACE)
_HEADS_PER_PROGRAM = 8
_COLUMNS_PER_PROGRAM = 1024


def add_and_norm(
    x: torch.Tensor,
    delta: torch.Tensor | None,
    weight: torch.Tensor,
    epsilon: float,
    wanted: torch.Tensor | None = None,
) -> torch.Tensor:
    """Add delta to x in place, and return its root mean square norm (arXiv 1910.07467) in the type of weight.

    x: [rows, size] float32. delta: [rows, size]. wanted: [n] rows whose norms are returned; then x stays as it is."""
    num_rows = len(x) if wanted is None else len(wanted)
    result = torch.empty(num_rows, x.shape[1], dtype=weight.dtype, device=x.device)
    _norm[(num_rows,)](
        x,
        x if delta is None else delta,
        weight,
        x if wanted is None else wanted,
        result,
        x.shape[1],
        epsilon,
        HAS_DELTA=delta is not None,
        HAS_WANTED=wanted is not None,
        BLOCK=triton.next_power_of_2(x.shape[1]),
        num_warps=8,
    )
    return result


@triton.jit
def _norm(
    x,
    delta,
    weight,
    wanted,
    result,
    size,
    epsilon,
    HAS_DELTA: tl.constexpr,
    HAS_WANTED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    place = tl.program_id(0)
    row = place
    if HAS_WANTED:
        row = tl.load(wanted + place)
    columns = tl.arange(0, BLOCK)
    inside = columns < size
    values = tl.load(x + row * size + columns, mask=inside, other=0.0)
    if HAS_DELTA:
        values += tl.load(delta + row * size + columns, mask=inside, other=0.0).to(tl.float32)
        if not HAS_WANTED:
            tl.store(x + row * size + columns, values, mask=inside)
    scale = 1.0 / tl.sqrt(tl.sum(values * values, 0) / size + epsilon)
    weights = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(result + place * size + columns, (values * scale * weights).to(result.dtype.element_ty), mask=inside)


def rotate_and_store(
    qkv: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    rows: torch.Tensor,
    rotation: torch.Tensor,
    head_norms: tuple[torch.Tensor, torch.Tensor] | None,
    epsilon: float,
) -> None:
    """Rotate queries in place (arXiv 2104.09864), and write rotated keys and values to the cache.

    qkv: [rows, (heads + 2 * kv_heads) * dim]. keys, values: [slot, kv_head, max_seq_len, dim] of one layer. rows: see
    `pass_table`. rotation: [2, position, dim / 2] cosines and sines. head_norms: [dim] weights of the norms of each
    head of queries and keys before rotation."""
    num_kv_heads, dim = keys.shape[1], keys.shape[3]
    num_heads = qkv.shape[1] // dim - 2 * num_kv_heads
    query_norm, key_norm = head_norms or (rotation, rotation)
    _rotate[(len(rows), triton.cdiv(num_heads + num_kv_heads, _HEADS_PER_PROGRAM))](
        qkv,
        keys,
        values,
        rows,
        rotation,
        rotation.stride(0),
        query_norm,
        key_norm,
        epsilon,
        keys.stride(0),
        keys.stride(1),
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=num_kv_heads,
        HALF=dim // 2,
        HAS_NORMS=head_norms is not None,
        HEADS=_HEADS_PER_PROGRAM,
        LANES=triton.next_power_of_2(dim // 2),
    )


@triton.jit
def _rotate(
    qkv,
    keys,
    values,
    rows,
    rotation,
    sines,
    query_norm,
    key_norm,
    epsilon,
    slot_stride,
    head_stride,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    HAS_NORMS: tl.constexpr,
    HEADS: tl.constexpr,
    LANES: tl.constexpr,
):
    row = tl.program_id(0)
    slot = tl.load(rows + row * _FIELDS + _SLOT)
    position = tl.load(rows + row * _FIELDS + _POSITION)
    place = tl.load(rows + row * _FIELDS + _PLACE)
    heads = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    lanes = tl.arange(0, LANES)[None, :]
    inside = (heads < NUM_HEADS + NUM_KV_HEADS) & (lanes < HALF)
    is_key = heads >= NUM_HEADS
    source = qkv + row * (NUM_HEADS + 2 * NUM_KV_HEADS) * 2 * HALF + heads * 2 * HALF + lanes
    low = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(source + HALF, mask=inside, other=0.0).to(tl.float32)
    if HAS_NORMS:
        squares = tl.sum(low * low, 1) + tl.sum(high * high, 1)
        scale = (1.0 / tl.sqrt(squares / (2 * HALF) + epsilon))[:, None]
        low *= scale * _head_weights(query_norm + lanes, key_norm + lanes, is_key, lanes < HALF)
        high *= scale * _head_weights(query_norm + HALF + lanes, key_norm + HALF + lanes, is_key, lanes < HALF)
    cosine = tl.load(rotation + position * HALF + lanes, mask=lanes < HALF, other=0.0)
    sine = tl.load(rotation + sines + position * HALF + lanes, mask=lanes < HALF, other=0.0)
    kind = qkv.dtype.element_ty
    rotated_low, rotated_high = (low * cosine - high * sine).to(kind), (high * cosine + low * sine).to(kind)
    is_query = inside & (heads < NUM_HEADS)
    tl.store(source, rotated_low, mask=is_query)
    tl.store(source + HALF, rotated_high, mask=is_query)
    if slot >= 0:  # rows of no sequence have the slot -1
        is_stored = inside & is_key
        offset = slot.to(tl.int64) * slot_stride + (heads - NUM_HEADS) * head_stride + place * 2 * HALF + lanes
        tl.store(keys + offset, rotated_low, mask=is_stored)
        tl.store(keys + offset + HALF, rotated_high, mask=is_stored)
        value_source = source + NUM_KV_HEADS * 2 * HALF
        tl.store(values + offset, _finite(value_source, is_stored), mask=is_stored)
        tl.store(values + offset + HALF, _finite(value_source + HALF, is_stored), mask=is_stored)


@triton.jit
def _finite(source, inside):
    """Values with 0 for NaN and infinity: a masked draft has the weight 0, and 0 times them would be NaN."""
    values = tl.load(source, mask=inside, other=0.0)
    return tl.where(tl.abs(values) < float("inf"), values, 0.0)


@triton.jit
def _head_weights(of_queries, of_keys, is_key, inside):
    queries = tl.load(of_queries, mask=inside, other=0.0).to(tl.float32)
    keys = tl.load(of_keys, mask=inside, other=0.0).to(tl.float32)
    return tl.where(is_key, keys, queries)


def gate(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up (arXiv 2002.05202). gate_up: [rows, 2 * size], gates first -> [rows, size]."""
    size = gate_up.shape[1] // 2
    result = torch.empty(len(gate_up), size, dtype=gate_up.dtype, device=gate_up.device)
    _gate[(len(gate_up), triton.cdiv(size, _COLUMNS_PER_PROGRAM))](gate_up, result, size, BLOCK=_COLUMNS_PER_PROGRAM)
    return result


@triton.jit
def _gate(gate_up, result, size, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)  # a pass of 39,000 rows of a 32B model has 2^31 gates and ups
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < size
    gates = tl.load(gate_up + row * 2 * size + columns, mask=inside, other=0.0).to(tl.float32)
    ups = tl.load(gate_up + row * 2 * size + size + columns, mask=inside, other=0.0).to(tl.float32)
    gated = gates / (1.0 + tl.exp(-gates)) * ups
    tl.store(result + row * size + columns, gated.to(result.dtype.element_ty), mask=inside)
