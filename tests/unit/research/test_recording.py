"""Recorded rows replay to the steps of a run with the model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from lookahead_research.known_outputs import ReplayRow
from lookahead_research.recorded_rows import RecordedRows, find_rows, load_rows, save_rows
from lookahead_research.recording import LiveRows, text_rows
from lookahead_research.replay import replay

from pipeline.config.schema import LookaheadConfig, RecyclingDraftConfig, SuppliedDraftConfig, TrieDraftConfig
from pipeline.decoding.drafting.drafter_factory import create_drafter
from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.tree import EMPTY_TREE, tree_from_lists
from pipeline.engine.submission import Submission
from pipeline.errors import UserError
from tests.fakes import VOCAB_SIZE, TableEngine, make_request, make_scheduler, plain_decode, table_logits

BUDGET = DraftBudget(8, 12)
WIDTH = 8
PROMPT_LEN = BUDGET.max_nodes + 1
SOURCES = (RecyclingDraftConfig(), SuppliedDraftConfig(), TrieDraftConfig())
END = frozenset({23})


def known_outputs(count: int = 4) -> list[ReplayRow]:
    rows = []
    for seed in range(count):
        # An end token, as a limit would tell a session how deep the last drafts may be.
        request = make_request(range(seed, seed + PROMPT_LEN), max_new_tokens=200, end_ids=END)
        rows.append(ReplayRow("d", "t", request.prompt_ids, np.asarray(plain_decode(request), np.int32)))
    return rows


def recorded(rows: list[ReplayRow], engine: TableEngine, width: int = WIDTH) -> list[RecordedRows]:
    return [RecordedRows(row.text, *text_rows(engine, row.text, width)) for row in rows]


def steps(rows: list[ReplayRow], targets: list[RecordedRows] | list[LiveRows]) -> int:
    given = [replace(row, target=target) for row, target in zip(rows, targets, strict=True)]
    results = replay(given, "hybrid", [BUDGET.max_nodes], ["warm"], max_draft_len=BUDGET.max_depth)
    return results[-1].steps


def steps_with_the_model(rows: list[ReplayRow]) -> int:
    lookahead = LookaheadConfig.of(1, 1, 0)
    drafter = create_drafter(SOURCES, lookahead, VOCAB_SIZE)
    # A pass over a prompt has no room for drafts, as in a replay.
    limits = replace(TableEngine().limits, max_num_tokens=PROMPT_LEN)
    scheduler = make_scheduler(
        engine=TableEngine(limits), drafter=drafter, budget=(BUDGET.max_nodes, BUDGET.max_depth), prefill_chunk=64
    )
    total = 0
    for row in rows:
        request = make_request(row.prompt_ids.tolist(), max_new_tokens=200, end_ids=END)
        (result,) = scheduler.run([Submission(request, "hybrid")])
        assert result.output_ids == row.output_ids.tolist()
        total += result.statistics.num_steps
    return total


def test_a_replay_of_recorded_rows_takes_the_steps_of_a_run_with_the_model(tmp_path: Path) -> None:
    rows, engine = known_outputs(), TableEngine()
    files = recorded(rows, engine)
    live = [LiveRows(each, engine) for each in files]
    assert steps(rows, live) == steps_with_the_model(rows) < sum(len(row.output_ids) for row in rows)
    assert not engine.held
    texts = [row.text for row in rows]
    save_rows(tmp_path / "rows.npz", files)
    loaded, first_rows = load_rows(tmp_path / "rows.npz", texts)
    assert not len(first_rows.ids)
    assert steps(rows, loaded) == steps_with_the_model(rows)
    assert sum(each.known for each in loaded) == sum(each.asked for each in loaded) > 0


@pytest.mark.parametrize("width", [1, 3])
def test_rows_narrower_than_a_source_asks_for_are_filled_up(width: int) -> None:
    rows, engine = known_outputs(), TableEngine()
    narrow, wide = recorded(rows, engine, width), recorded(rows, engine)
    assert steps(rows, narrow) >= steps(rows, wide)
    ids, probs = narrow[0].candidates(PROMPT_LEN, EMPTY_TREE, WIDTH)
    assert ids[0, :width].tolist() == wide[0].candidates(PROMPT_LEN, EMPTY_TREE, width)[0][0].tolist()
    assert (ids[0, width:] == -1).all()
    assert not probs[0, width:].any()


def test_rows_are_those_of_the_engine_and_what_was_never_computed_is_unknown() -> None:
    (row,), engine = known_outputs(1), TableEngine()
    (rows,) = recorded([row], engine)
    text, position = row.text, 10
    wrong = int(text[position] + 1) % VOCAB_SIZE
    tree = tree_from_lists([int(text[position]), wrong, 3], [-1, -1, 1])
    ids, probs = rows.candidates(position, tree, 4)
    for place, context in ((0, text[:position]), (1, text[: position + 1])):
        expected = np.argsort(-table_logits(context.tolist()))[:4]
        assert ids[place].tolist() == expected.tolist()
        assert probs[place, 0] > probs[place, 1] > 0
    assert (ids[2:] == -1).all()
    assert not probs[2:].any()
    assert (rows.asked, rows.known) == (4, 2)
    ids, _ = LiveRows(rows, engine).candidates(position, tree, 4)
    below = [*text[:position].tolist(), wrong, 3]
    assert ids[3].tolist() == np.argsort(-table_logits(below))[:4].tolist()
    assert rows.candidates(position, tree, 4)[0].tolist() == ids.tolist()


def test_a_file_is_extended_and_keeps_the_rows_of_other_texts(tmp_path: Path) -> None:
    rows, path = known_outputs(2), tmp_path / "rows.npz"
    files, (first, second) = recorded(rows, TableEngine()), [row.text for row in rows]
    save_rows(path, files[:1])
    found, _ = find_rows(path, [second, first])
    assert found[0] is None
    assert found[1] is not None
    save_rows(path, files[1:])
    assert [each.text.tolist() for each in load_rows(path, [first, second])[0]] == [first.tolist(), second.tolist()]
    assert [entry.name for entry in tmp_path.iterdir()] == ["rows.npz"]


def test_rows_of_another_text_and_other_files_are_refused(tmp_path: Path) -> None:
    (row,) = known_outputs(1)
    rows = recorded([row], TableEngine())
    path = tmp_path / "rows.npz"
    save_rows(path, rows)
    with pytest.raises(UserError, match="no rows of output 2; record them"):
        load_rows(path, [row.text, row.text[:-1]])
    array = tmp_path / "array.npy"
    np.save(array, row.text)
    for damaged in (b"no rows", b"", path.read_bytes()[:-30], array.read_bytes()):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match="is not a file of `lookahead research record`, or is damaged"):
            load_rows(path, [row.text])
    assert rows[0].find(5, EMPTY_TREE).tolist() == [4]
