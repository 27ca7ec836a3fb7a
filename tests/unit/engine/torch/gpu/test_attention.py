"""Attention of the GPU's passes equals a masked softmax, however keys are divided; moves equal those of the plain
cache."""

import numpy as np
import pytest
import torch

from pipeline.engine.torch.attention import SlotCache, segment_mask
from pipeline.engine.torch.slots import Segment
from tests.unit.engine.torch.devices import DEVICE
from tests.unit.engine.torch.segments import segments_of

pytest.importorskip("triton")

from pipeline.decoding.tree import chain, tree_from_lists
from pipeline.engine.torch.gpu.attention import attend, rows_per_tile
from pipeline.engine.torch.gpu.cache import GpuCache
from pipeline.engine.torch.gpu.pass_table import table_of

KV_HEADS, MAX_SEQ_LEN = 2, 320


def expected_rows(
    segment: Segment, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int
) -> torch.Tensor:
    """[length, heads, dim] by a softmax over all keys. queries: [length, heads, dim]."""
    group = queries.shape[1] // KV_HEADS
    mask = torch.from_numpy(segment_mask(segment, window or None)).to(DEVICE)
    num_keys = segment.cached + segment.length
    own_keys = keys[segment.slot.index, :, :num_keys].repeat_interleave(group, 0)
    own_values = values[segment.slot.index, :, :num_keys].repeat_interleave(group, 0)
    scores = queries.transpose(0, 1) @ own_keys.transpose(1, 2) * queries.shape[2] ** -0.5
    return (scores.masked_fill(~mask, -torch.inf).softmax(2) @ own_values).transpose(0, 1)


@pytest.mark.parametrize(("group", "dim", "window", "parts"), [(1, 16, 0, 1), (2, 32, 9, 1), (3, 24, 40, 2)])
def test_attention_is_a_masked_softmax(group: int, dim: int, window: int, parts: int) -> None:
    torch.manual_seed(group)
    tree = tree_from_lists(list(range(1, 9)), [-1, 0, 0, 2, -1, 4, 4, 3])
    shapes = [(0, 3, chain([])), (131, 1, tree), (300, 2, chain([5, 6])), (17, 1, chain([]))]
    segments = segments_of(shapes)
    num_rows, num_heads = sum(segment.length for segment in segments), group * KV_HEADS
    keys, values = torch.randn(2, len(shapes), KV_HEADS, MAX_SEQ_LEN, dim, device=DEVICE)
    qkv = torch.randn(num_rows, (num_heads + 2 * KV_HEADS) * dim, device=DEVICE)
    tile_rows = rows_per_tile(group, is_prompt=parts == 1)
    table = table_of(segments, np.asarray([0]), tile_rows)
    rows, tiles = (torch.from_numpy(part).to(DEVICE) for part in (table.rows, table.tiles))

    found = attend(qkv, keys, values, rows, tiles, tile_rows, window, parts).view(num_rows, num_heads, dim)

    queries = qkv.view(num_rows, -1, dim)[:, :num_heads]
    for segment in segments:
        part = slice(segment.start, segment.start + segment.length)
        torch.testing.assert_close(
            found[part], expected_rows(segment, queries[part], keys, values, window), atol=2e-5, rtol=2e-5
        )


def test_moves_of_all_sequences_are_those_of_the_plain_cache() -> None:
    shape = (2, 3, KV_HEADS, 40, 24)
    plain = SlotCache(shape, torch.float32, torch.device(DEVICE))
    moved = GpuCache(shape, torch.float32, torch.device(DEVICE))
    moved.keys.copy_(plain.keys.normal_())
    moved.values.copy_(plain.values.normal_())
    for cache in (plain, moved):
        cache.move_path(1, 5, [1, 2, 5, 9])  # the last overwrites nothing that is still to be read
        cache.move_path(0, 0, [3, 4])
        cache.move_path(2, 30, [8])
        cache.copy_prefix(1, 2, 12)
        cache.move_path(1, 9, [2, 3, 4, 5, 6])
    assert not torch.equal(plain.keys, moved.keys)

    moved.apply_moves()

    torch.testing.assert_close(moved.keys, plain.keys, atol=0, rtol=0)
    torch.testing.assert_close(moved.values, plain.values, atol=0, rtol=0)
