"""AMX tiles: exact sums, the bits of the other int8 tiles, and an engine that works without permission."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.decoding.tree import chain
from pipeline.engine.contract import VerifyItem
from pipeline.engine.torch.lean import amx, tables
from pipeline.engine.torch.lean.compilation import kernel
from pipeline.engine.torch.lean.tables import aligned
from pipeline.engine.torch.lean.tiles import MAX_BLOCKS
from tests.unit.engine.torch.lean.models import VOCAB_SIZE, lean_engine, tiny_model

COLUMNS = 16 * MAX_BLOCKS

needs_amx = pytest.mark.skipif(not amx.is_permitted(), reason="the processor or the system has no AMX")


@kernel
def run(addresses: np.ndarray, row_bytes: int, ahead_stride: int, rows: int, blocks: int) -> None:
    x, w, start, scale, bias, row_scale, base, out = addresses
    steps, block_bytes, out_bytes = row_bytes // 4, 16 * row_bytes, 4 * 16 * MAX_BLOCKS
    operands = (x, row_bytes, w, block_bytes, 64, steps, start, scale, bias, row_scale, base, out_bytes, out, out_bytes)
    amx.configure()
    amx.amx_tile(*operands, w, ahead_stride, rows, blocks)
    amx.release()


@needs_amx
@pytest.mark.parametrize("num_inputs", [64, 192])
@pytest.mark.parametrize("extreme", [False, True])
def test_sums_are_exact(num_inputs: int, extreme: bool) -> None:
    random = np.random.default_rng(0)
    weight = random.integers(-127, 128, (COLUMNS, num_inputs)).astype(np.int8)
    rows = random.integers(-127, 128, (amx.ROWS, num_inputs))
    if extreme:
        weight[:], rows[:] = 127, 127
        weight[1::2], rows[1::2] = -127, -127
    packed = np.ascontiguousarray(weight.reshape(MAX_BLOCKS, 16, num_inputs // 4, 4).transpose(0, 2, 1, 3))
    row_bytes = aligned(rows.shape, np.uint8)
    row_bytes[:] = rows + 128
    start = (-128 * weight.astype(np.int32).sum(1)).astype(np.int32)
    scale, bias = random.random((2, COLUMNS), np.float32)
    row_scale = random.random(amx.ROWS, np.float32)
    base = random.random((amx.ROWS, COLUMNS), np.float32)
    sums = rows @ weight.T.astype(np.int64)
    expected = base + (sums.astype(np.float32) * scale * row_scale[:, None] + bias)
    for count in range(1, amx.ROWS + 1):
        for blocks in (1, MAX_BLOCKS):
            out = np.full((amx.ROWS, COLUMNS), np.nan, np.float32)
            arrays = (row_bytes, packed, start, scale, bias, row_scale, base, out)
            addresses = np.asarray([array.ctypes.data for array in arrays], np.int64)
            run(addresses, num_inputs, 64 // count, count, blocks)
            np.testing.assert_array_equal(out[:count, : 16 * blocks], expected[:count, : 16 * blocks])
            assert np.isnan(out[count:]).all()
            assert np.isnan(out[:, 16 * blocks :]).all()


@needs_amx
def test_passes_with_and_without_it_have_the_same_bits(tmp_path: Path) -> None:
    engine = lean_engine(tiny_model("wide"), "int8", tmp_path)
    assert engine._sizes[tables.USES_AMX]
    random = np.random.default_rng(0)
    tokens, drafts = random.integers(0, VOCAB_SIZE, 50), random.integers(0, VOCAB_SIZE, 127).tolist()
    for count in (1, 2, 15, 16, 17, 40, 128):
        logits = []
        for uses_amx in (True, False):
            engine._sizes[tables.USES_AMX] = uses_amx
            engine.forget_cached()
            sequence = engine.open(tokens)
            (result,) = engine.verify([VerifyItem(sequence, chain(drafts[: count - 1]))])
            assert result is not None
            logits.append(np.stack([result.row(node) for node in range(count)]))
            engine.release(sequence)
        assert logits[0].tobytes() == logits[1].tobytes(), count


def test_an_engine_works_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amx, "is_permitted", lambda: False)
    engine = lean_engine(tiny_model("wide"), "int8", tmp_path)
    assert not engine._sizes[tables.USES_AMX]
    (result,) = engine.verify([VerifyItem(engine.open(np.arange(20)))])
    assert result is not None
    assert np.isfinite(result.row(0)).all()
