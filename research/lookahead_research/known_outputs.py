"""Known outputs to replay: rows of a JSON Lines file, or of a file of `lookahead bench --json`.

A row is {"prompt_ids": [...], "output_ids": [...], "task" or "category": "...", "dataset": "..."}; the last two are
optional, as is "prediction_ids", a client's prediction of the output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lookahead_research.recorded_rows import TargetRows
from pipeline.bench.data.token_rows import bench_requests, token_list
from pipeline.decoding.tree import IntArray
from pipeline.engine.admission import require_tokens
from pipeline.errors import UserError
from pipeline.json_lines import json_rows, reading

# Name of the total over all tasks.
ALL_TASKS = "all"


@dataclass(frozen=True, slots=True)
class ReplayRow:
    """One known output. prediction_ids: a client's prediction of the output, or None. target: the target's candidates,
    for sources that learn from them, or None."""

    dataset: str
    task: str
    prompt_ids: IntArray
    output_ids: IntArray
    prediction_ids: IntArray | None = None
    target: TargetRows | None = None

    @property
    def text(self) -> IntArray:
        """[prompt_len + output_len] prompt and output."""
        return np.concatenate((self.prompt_ids, self.output_ids))


def load_replay_rows(path: Path) -> list[ReplayRow]:
    """Read rows of a JSON Lines file of known outputs, or of a file of `lookahead bench --json` (its strategy "none",
    or else its first strategy). Raises UserError with the row's place for a missing or invalid value."""
    with reading(path):
        text = path.read_text(encoding="utf-8")
    values = bench_requests(text, path)
    if values is None:
        # Not splitlines(), because JSON strings may contain unescaped U+2028 and U+2029.
        values = json_rows(text.split("\n"), path)
    rows = [_replay_row(value, where) for where, value in values]
    if not rows:
        raise UserError(f"{path} has no outputs; give rows with prompt_ids and output_ids.")
    return rows


def require_vocabulary(rows: Sequence[ReplayRow], vocab_size: int) -> None:
    """Raise UserError if an output has a token that the model does not have."""
    for number, row in enumerate(rows, 1):
        require_tokens(row.text, vocab_size, f"output {number} (prompt and output)")


def require_room(rows: Sequence[ReplayRow], num_drafts: int, max_seq_len: int) -> None:
    """Raise UserError if an engine's sequences are too short for an output with this number of drafts."""
    for number, row in enumerate(rows, 1):
        if (needed := len(row.text) + num_drafts) > max_seq_len:
            raise UserError(
                f"Output {number} needs {needed} tokens (prompt, output and drafts), and engine.max_seq_len is "
                f"{max_seq_len}. Use --set engine.max_seq_len={needed}, or leave it out."
            )


def _replay_row(value: Any, where: str) -> ReplayRow:
    if not isinstance(value, dict):
        raise UserError(
            f"{where}: a row must be an object with prompt_ids and output_ids, found {type(value).__name__}."
        )
    prompt_ids, output_ids = (_some_tokens(value, key, where) for key in ("prompt_ids", "output_ids"))
    task = str(_first_of(value, "task", "category", default="task"))
    if task == ALL_TASKS:
        raise UserError(f"{where}: the task {task!r} has the name of the total over all tasks; rename it.")
    return ReplayRow(
        dataset=str(_first_of(value, "dataset", default="")),
        task=task,
        prompt_ids=prompt_ids,
        output_ids=output_ids,
        prediction_ids=_some_tokens(value, "prediction_ids", where) if "prediction_ids" in value else None,
    )


def _first_of(value: dict[str, Any], *keys: str, default: str) -> Any:
    return next((value[key] for key in keys if value.get(key) is not None), default)


def _some_tokens(value: dict[str, Any], key: str, where: str) -> IntArray:
    ids = token_list(value.get(key), f"{where}: {key}")
    if not len(ids):
        raise UserError(f"{where}: {key} is empty; it must hold at least one token id.")
    return ids
