"""First rows are those of the engine, stored once for all profiles of the weights."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipeline.config.folders import Folders
from pipeline.decoding.drafting.first_rows import NO_FIRST_ROWS
from pipeline.engine.artifact import load_artifact
from pipeline.engine.first_rows import (
    WIDTH,
    StoredRows,
    compute_first_rows,
    first_rows_path,
    load_first_rows,
    save_first_rows,
)
from pipeline.engine.removal import removable
from tests.fakes import VOCAB_SIZE, TableEngine, table_logits

CONTEXT = np.asarray([3, 1, 2], np.int32)


def test_rows_are_what_the_engine_says_behind_each_token() -> None:
    engine = TableEngine()
    engine.limits = replace(engine.limits, max_draft_tokens=7)
    rows = compute_first_rows(engine, CONTEXT, NO_FIRST_ROWS, most_tokens=20)
    assert rows.ids.shape == rows.probs.shape == (20, WIDTH)
    assert (engine.num_passes, engine.held) == (3, [])
    for token in range(20):
        expected = np.argsort(-table_logits([*CONTEXT.tolist(), token]), kind="stable")[:WIDTH]
        assert rows.ids[token].tolist() == expected.tolist()
    assert (np.diff(rows.probs) <= 0).all()


@pytest.mark.parametrize("context_len", [20, 21, 300])
def test_after_a_long_context_its_end_counts(context_len: int) -> None:
    """A template with a long default system prompt left no token of a pass, and the build ended with a TypeError."""
    engine = TableEngine()
    engine.limits = replace(engine.limits, max_num_tokens=40)
    context = np.arange(context_len, dtype=np.int32) % VOCAB_SIZE
    rows = compute_first_rows(engine, context, NO_FIRST_ROWS, most_tokens=30)
    expected = compute_first_rows(TableEngine(), context[-20:], NO_FIRST_ROWS, most_tokens=30)
    assert np.array_equal(rows.ids, expected.ids)


def test_what_there_is_no_time_for_is_computed_the_next_time() -> None:
    engine = TableEngine()
    engine.limits = replace(engine.limits, max_draft_tokens=10)
    some = compute_first_rows(engine, CONTEXT, NO_FIRST_ROWS, most_tokens=1000, max_seconds=-1.0)
    assert len(some.ids) == 10
    rest = compute_first_rows(engine, CONTEXT, some, most_tokens=1000)
    whole = compute_first_rows(engine, CONTEXT, NO_FIRST_ROWS, most_tokens=1000)
    assert len(whole.ids) == VOCAB_SIZE
    assert np.array_equal(rest.ids, whole.ids)
    assert np.array_equal(rest.probs, whole.probs)


def test_stored_rows_are_read_unless_damaged_and_removed_with_the_engines(where: Folders, built: Path) -> None:
    artifact = load_artifact(built, where.cache)
    assert load_first_rows(artifact) is None
    rows = compute_first_rows(TableEngine(), CONTEXT, NO_FIRST_ROWS, most_tokens=5)
    save_first_rows(artifact, StoredRows(rows, VOCAB_SIZE))
    stored = load_first_rows(artifact)
    assert stored is not None
    assert stored.vocab_size == VOCAB_SIZE
    assert np.array_equal(stored.rows.ids, rows.ids)
    assert stored.rows.probs == pytest.approx(rows.probs, abs=1e-3)
    path = first_rows_path(artifact)
    assert path.parent in removable(where, artifact.manifest.model, cache=False)

    save_first_rows(artifact, StoredRows(rows, 3))
    assert load_first_rows(artifact) is None
    array = io.BytesIO()
    np.save(array, rows.ids)
    for damaged in (b"no rows", b"", path.read_bytes()[:-30], array.getvalue()):
        path.write_bytes(damaged)
        assert load_first_rows(artifact) is None
