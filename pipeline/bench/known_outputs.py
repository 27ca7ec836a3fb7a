"""Known outputs to replay: rows of a JSON Lines file, or of what `lookahead bench --json` wrote.

A row is {"prompt_ids": [...], "output_ids": [...], "task" or "category": "...", "dataset": "..."}, the last two being
optional. It may carry "topk": {"top_ids": [[...], ...], "top_probs": [[...], ...]}, the target's candidates for each
output token, and "prediction_ids", what a client would have predicted.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.decoding.tree import FloatArray, IntArray
from pipeline.errors import UserError


@dataclass(frozen=True, slots=True)
class ReplayRow:
    """One known output. top_ids, top_probs: [output_len, k] the target's candidates for each output token, or None.
    prediction_ids: what a client would have predicted, or None."""

    dataset: str
    task: str
    prompt_ids: IntArray
    output_ids: IntArray
    top_ids: IntArray | None = None
    top_probs: FloatArray | None = None
    prediction_ids: IntArray | None = None

    def token_arrays(self) -> list[IntArray]:
        """All arrays of token ids that it has."""
        arrays = (self.prompt_ids, self.output_ids, self.top_ids, self.prediction_ids)
        return [ids for ids in arrays if ids is not None and ids.size]


def load_replay_rows(path: Path) -> list[ReplayRow]:
    """Rows of a JSON Lines file of known outputs, or of what `lookahead bench --json` wrote (the rows of strategy
    "none", or of its first strategy). Raises UserError, saying which row, if something is missing or is no token
    list."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}. Give a file of known outputs.") from error
    values = _bench_rows(text, path)
    if values is None:
        values = []
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                try:
                    values.append((f"line {number}", json.loads(line)))
                except json.JSONDecodeError as error:
                    raise UserError(f"{path}, line {number}: no JSON ({error}).") from error
    rows = [_replay_row(value, f"{path}, {where}") for where, value in values]
    if not rows:
        raise UserError(f"{path} holds no outputs; give rows with prompt_ids and output_ids.")
    return rows


def _bench_rows(text: str, path: Path) -> list[tuple[str, Any]] | None:
    """The requests of a bench file, or None if the text is no such file."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return None
    if not isinstance(value, dict) or "requests" not in value:
        return None
    requests = value["requests"]
    if not isinstance(requests, list) or not all(isinstance(request, dict) for request in requests):
        raise UserError(f"{path}: requests must be a list of objects, as `lookahead bench --json` writes them.")
    strategies = [request.get("strategy") for request in requests]
    chosen = "none" if "none" in strategies else next(iter(strategies), None)
    # A bench may have run its workload more than once.
    return [
        (f"request {number}", request)
        for number, request in enumerate(requests, 1)
        if request.get("strategy") == chosen and not request.get("repeat")
    ]


def _replay_row(value: Any, where: str) -> ReplayRow:
    if not isinstance(value, dict):
        raise UserError(
            f"{where}: a row must be an object with prompt_ids and output_ids, found {type(value).__name__}."
        )
    prompt_ids, output_ids = (_token_ids(value, key, where) for key in ("prompt_ids", "output_ids"))
    top_ids, top_probs = None, None
    top_k = value.get("topk")
    if top_k is not None:
        try:
            top_ids = np.asarray(top_k["top_ids"], np.int32)
            top_probs = np.asarray(top_k["top_probs"], np.float32)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{where}: topk must hold the lists top_ids and top_probs ({error!r}).") from error
        if top_ids.ndim != 2 or top_ids.shape != top_probs.shape or len(top_ids) != len(output_ids):
            raise UserError(
                f"{where}: topk needs {len(output_ids)} lists of one length in top_ids and in top_probs, one per "
                f"output token; found shapes {top_ids.shape} and {top_probs.shape}."
            )
    return ReplayRow(
        dataset=str(value.get("dataset", "")),
        task=str(value.get("task", value.get("category", "task"))),
        prompt_ids=prompt_ids,
        output_ids=output_ids,
        top_ids=top_ids,
        top_probs=top_probs,
        prediction_ids=_token_ids(value, "prediction_ids", where) if "prediction_ids" in value else None,
    )


def _token_ids(value: dict[str, Any], key: str, where: str) -> IntArray:
    ids = value.get(key)
    if not isinstance(ids, list) or not ids or not all(type(token) is int and 0 <= token < 1 << 31 for token in ids):
        raise UserError(f"{where}: {key} must be a list of one or more token ids.")
    return np.asarray(ids, np.int32)
