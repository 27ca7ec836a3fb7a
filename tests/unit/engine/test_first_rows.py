"""First rows are those of the engine, stored once for all profiles of the weights, and refused when damaged."""

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
from pipeline.errors import BuildError
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


def test_stored_rows_are_read_refused_when_damaged_and_removed_with_the_engines(where: Folders, built: Path) -> None:
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
    with pytest.raises(BuildError, match=r"outside the vocabulary 0\.\.2.*delete it"):
        load_first_rows(artifact)
    array = io.BytesIO()
    np.save(array, rows.ids)
    for damaged in (b"no rows", b"", path.read_bytes()[:-30], array.getvalue()):
        path.write_bytes(damaged)
        with pytest.raises(BuildError, match="cannot be read as first rows"):
            load_first_rows(artifact)
