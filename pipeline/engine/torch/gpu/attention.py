"""Tree attention over the slot cache, as kernels for GPUs.

A program computes a tile of rows for one key head, over a part of the keys (flash decoding, arXiv 2307.08691 section
3.3 for the running maximum and sum). Another kernel joins the parts. All query heads of a key head are rows of the same
matrix products, so keys and values are read once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from pipeline.engine.torch.gpu import pass_table

# Columns of the tables as constants of kernels.
_FIELDS, _TILE_FIELDS = tl.constexpr(pass_table.NUM_FIELDS), tl.constexpr(pass_table.NUM_TILE_FIELDS)
_SLOT, _POSITION, _SEEN = (tl.constexpr(column) for column in (pass_table.SLOT, pass_table.POSITION, pass_table.SEEN))
_FIRST, _END = tl.constexpr(pass_table.FIRST), tl.constexpr(pass_table.END)
_TILE_BEGIN, _TILE_ROWS = tl.constexpr(pass_table.TILE_BEGIN), tl.constexpr(pass_table.TILE_ROWS)
_TILE_SEGMENT, _TILE_CACHED = tl.constexpr(pass_table.TILE_SEGMENT), tl.constexpr(pass_table.TILE_CACHED)
# Rows of the matrix products of a tile, each row of the pass taking one per query head of a key head.
_TREE_TILE, _PROMPT_TILE = 16, 64
_MOST_PARTS = 16
# Least number of keys of a part.
_PART = tl.constexpr(128)
_LOG2_E = 1.4426950408889634


def rows_per_tile(group_size: int, is_prompt: bool) -> int:
    """Number of rows of a pass in a tile. group_size: query heads per key head."""
    return max(1, (_PROMPT_TILE if is_prompt else _TREE_TILE) // group_size)


def num_parts(max_seq_len: int) -> int:
    """Number of parts into which the keys of a row are divided if few rows shall occupy a GPU: a power of two."""
    num_parts: int = triton.next_power_of_2(triton.cdiv(max_seq_len, _PART.value))
    return min(_MOST_PARTS, num_parts)


def attend(
    qkv: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    rows: torch.Tensor,
    tiles: torch.Tensor,
    tile_rows: int,
    window: int,
    parts: int,
) -> torch.Tensor:
    """Attention of all rows -> [rows, heads * dim].

    qkv: [rows, (heads + 2 * kv_heads) * dim] rotated queries first. keys, values: [slot, kv_head, max_seq_len, dim] of
    one layer, with those of the rows. rows, tiles: see `pass_table`. tile_rows: rows of a tile, see `rows_per_tile`.
    window: sliding window in positions, 0 for none. parts: number of parts of the keys, computed at the same time."""
    num_kv_heads, dim = keys.shape[1], keys.shape[3]
    num_heads = qkv.shape[1] // dim - 2 * num_kv_heads
    group, lanes = num_heads // num_kv_heads, max(16, triton.next_power_of_2(dim))
    result = torch.empty(len(rows), num_heads * dim, dtype=qkv.dtype, device=qkv.device)
    partial, sums = result, result
    if parts > 1:
        partial = torch.empty(len(rows), num_heads, parts, lanes, dtype=torch.float32, device=qkv.device)
        sums = torch.empty(2, len(rows), num_heads, parts, dtype=torch.float32, device=qkv.device)
    _attend[(len(tiles), num_kv_heads, parts)](
        qkv,
        keys,
        values,
        rows,
        tiles,
        partial,
        sums,
        sums.stride(0),
        dim**-0.5 * _LOG2_E,
        keys.stride(0),
        keys.stride(1),
        NUM_KV_HEADS=num_kv_heads,
        GROUP=group,
        DIM=dim,
        WINDOW=window,
        PARTS=parts,
        ROWS=max(16, triton.next_power_of_2(tile_rows * group)),
        KEYS=32 if qkv.dtype == torch.float32 else 64,
        LANES=lanes,
        # Consumer GPUs have less than half of the shared memory of an H100.
        num_stages=1 if qkv.dtype == torch.float32 else 2,
        num_warps=2 if tile_rows * group <= _TREE_TILE else 4,
    )
    if parts > 1:
        _join[(len(rows), num_heads)](partial, sums, sums.stride(0), rows, result, DIM=dim, PARTS=parts, LANES=lanes)
    return result


@triton.jit
def _keys_per_part(num_keys, PARTS: tl.constexpr):
    """A multiple of _PART, so that short contexts have few parts."""
    return tl.cdiv(tl.cdiv(num_keys, PARTS), _PART) * _PART


@triton.jit
def _attend(
    qkv,
    keys,
    values,
    rows,
    tiles,
    partial,
    sums,
    sums_stride,
    scale,
    slot_stride,
    head_stride,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    WINDOW: tl.constexpr,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    LANES: tl.constexpr,
):
    tile = tiles + tl.program_id(0) * _TILE_FIELDS
    head, part = tl.program_id(1), tl.program_id(2)
    begin, num_rows = tl.load(tile + _TILE_BEGIN), tl.load(tile + _TILE_ROWS)
    if num_rows == 0:
        return
    segment, cached = tl.load(tile + _TILE_SEGMENT), tl.load(tile + _TILE_CACHED)
    num_keys = tl.load(rows + begin * _FIELDS + _SEEN)
    part_size = _keys_per_part(num_keys, PARTS)
    first_key = part * part_size
    if first_key >= num_keys:
        return
    last_key = tl.minimum(num_keys, first_key + part_size)

    # Queries of the tile: the query heads of this key head follow each other.
    offsets, lanes = tl.arange(0, ROWS), tl.arange(0, LANES)
    row = begin + offsets // GROUP
    is_row = offsets < num_rows * GROUP
    query_head = head * GROUP + offsets % GROUP
    num_heads = NUM_KV_HEADS * GROUP
    in_query = is_row[:, None] & (lanes < DIM)[None, :]
    place_of_query = row * (num_heads + 2 * NUM_KV_HEADS) * DIM + query_head * DIM
    query = tl.load(qkv + place_of_query[:, None] + lanes[None, :], mask=in_query, other=0.0)
    order = tl.load(rows + row * _FIELDS + _FIRST, mask=is_row, other=0)
    position = tl.load(rows + row * _FIELDS + _POSITION, mask=is_row, other=0)

    # Softmax over the keys of this part, with a running maximum and sum.
    slot = tl.load(rows + begin * _FIELDS + _SLOT).to(tl.int64)
    slot_head = slot * slot_stride + head * head_stride
    best = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    result = tl.zeros((ROWS, LANES), tl.float32)
    for start in range(first_key, last_key, KEYS):
        place = start + tl.arange(0, KEYS)
        is_key = place < last_key
        in_key = is_key[:, None] & (lanes < DIM)[None, :]
        offset = slot_head + place[:, None] * DIM + lanes[None, :]
        key = tl.load(keys + offset, mask=in_key, other=0.0)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        is_own = is_key & (place >= cached)
        own_row = rows + (segment + place - cached) * _FIELDS
        first = tl.load(own_row + _FIRST, mask=is_own, other=0)
        end = tl.load(own_row + _END, mask=is_own, other=0x7FFFFFFF)
        visible = is_key[None, :] & (first[None, :] <= order[:, None]) & (order[:, None] < end[None, :])
        if WINDOW:
            key_position = tl.where(is_own, tl.load(own_row + _POSITION, mask=is_own, other=0), place)
            visible = visible & (position[:, None] - key_position[None, :] < WINDOW)
        scores = tl.where(visible, scores, float("-inf"))
        new_best = tl.maximum(best, tl.max(scores, 1))
        # All keys so far may be masked for a row.
        shift = tl.where(new_best == float("-inf"), 0.0, new_best)
        weights = tl.exp2(scores - shift[:, None])
        keep = tl.exp2(best - shift)
        total = total * keep + tl.sum(weights, 1)
        value = tl.load(values + offset, mask=in_key, other=0.0)
        result = result * keep[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
        best = new_best

    # The attention itself, or what `_join` needs of this part.
    if PARTS == 1:
        target = partial + (row * num_heads + query_head)[:, None] * DIM + lanes[None, :]
        tl.store(target, (result / total[:, None]).to(partial.dtype.element_ty), mask=in_query)
    else:
        entry = (row * num_heads + query_head) * PARTS + part
        tl.store(partial + entry[:, None] * LANES + lanes[None, :], result, mask=is_row[:, None])
        tl.store(sums + entry, best, mask=is_row)
        tl.store(sums + sums_stride + entry, total, mask=is_row)


@triton.jit
def _join(
    partial,
    sums,
    sums_stride,
    rows,
    result,
    DIM: tl.constexpr,
    PARTS: tl.constexpr,
    LANES: tl.constexpr,
):
    row, head = tl.program_id(0), tl.program_id(1)
    num_keys = tl.load(rows + row * _FIELDS + _SEEN)
    entry = (row * tl.num_programs(1) + head) * PARTS
    parts, lanes = tl.arange(0, PARTS), tl.arange(0, LANES)
    is_part = parts * _keys_per_part(num_keys, PARTS) < num_keys
    best = tl.load(sums + entry + parts, mask=is_part, other=float("-inf"))
    share = tl.exp2(best - tl.max(best, 0))
    total = tl.sum(share * tl.load(sums + sums_stride + entry + parts, mask=is_part, other=0.0), 0)
    all_parts = tl.load(partial + (entry + parts)[:, None] * LANES + lanes[None, :], mask=is_part[:, None], other=0.0)
    # Rows of no sequence have no keys.
    joined = tl.where(num_keys > 0, tl.sum(all_parts * share[:, None], 0) / total, 0.0)
    target = result + (row * tl.num_programs(1) + head) * DIM + lanes
    tl.store(target, joined.to(result.dtype.element_ty), mask=lanes < DIM)
