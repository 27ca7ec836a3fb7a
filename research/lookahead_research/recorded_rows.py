"""Recorded rows of a target: its most probable next tokens after every prefix of known texts, and after drafts. With
them, draft sources that learn from rows can be replayed without the model.

Row i < len(text) belongs to text[: i + 1], prompt included. Rows of rejected drafts follow; each is identified by the
row of its parent and its token. Rows that were never computed are unknown. Sources do not receive them, so a replay
learns a little less than a live run; `known` and `asked` count how much.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pipeline.decoding.drafting.first_rows import NO_FIRST_ROWS, FirstRows
from pipeline.decoding.tree import DraftTree, FloatArray, IntArray
from pipeline.errors import UserError
from pipeline.files import read_arrays, write_atomically
from pipeline.json_lines import reading

UNKNOWN = -1
_FIRST = "first"
_ARRAYS = ("parents", "tokens", "ids", "probs")


class TargetRows(Protocol):
    """Rows of the target for one text."""

    def candidates(self, position: int, tree: DraftTree, k: int) -> tuple[IntArray, FloatArray]:
        """[n + 1, k] ids and probabilities of the rows of text[:position] and of the nodes of a tree below it; -1 and 0
        if a row is unknown, or has fewer than k."""


class RecordedRows:
    """Rows of one text. asked: number of rows that `candidates` was called for. known: number of those that it
    found."""

    def __init__(self, text: IntArray, ids: IntArray, probs: FloatArray) -> None:
        """text: [len] prompt and output. ids, probs: [len, k] rows of its prefixes."""
        self.text = text
        self._ids = [*ids]
        self._probs = [*probs]
        self._drafts: dict[tuple[int, int], int] = {}
        self.known = 0
        self.asked = 0

    def find(self, position: int, tree: DraftTree) -> IntArray:
        """[n + 1] indices of the rows of text[:position] and of the nodes of a tree below it, or `UNKNOWN`."""
        rows = np.full(len(tree) + 1, UNKNOWN, np.int32)
        rows[0] = position - 1
        for node, (parent, token) in enumerate(zip(tree.parents.tolist(), tree.token_ids.tolist(), strict=True)):
            above = int(rows[parent + 1])
            if above != UNKNOWN:
                rows[node + 1] = self._child(above, token)
        return rows

    def candidates(self, position: int, tree: DraftTree, k: int) -> tuple[IntArray, FloatArray]:
        """See `TargetRows`."""
        rows = self.find(position, tree)
        self.asked += len(rows)
        self.known += int(np.count_nonzero(rows != UNKNOWN))
        return self.rows(rows, k)

    def rows(self, rows: IntArray, k: int) -> tuple[IntArray, FloatArray]:
        """[n, k] ids and probabilities of rows with indices from `find`."""
        ids, probs = np.full((len(rows), k), -1, np.int32), np.zeros((len(rows), k), np.float32)
        width = min(k, self.k)
        for index, row in enumerate(rows.tolist()):
            if row != UNKNOWN:
                ids[index, :width], probs[index, :width] = self._ids[row][:width], self._probs[row][:width]
        return ids, probs

    def add(self, position: int, tree: DraftTree, ids: IntArray, probs: FloatArray) -> None:
        """Store the rows [n + 1, k] of a verified tree below text[:position]."""
        rows = [position - 1]
        for node, (parent, token) in enumerate(zip(tree.parents.tolist(), tree.token_ids.tolist(), strict=True)):
            above = rows[parent + 1]
            row = self._child(above, token)
            if row == UNKNOWN:
                row = self._drafts[above, token] = len(self._ids)
                self._ids.append(ids[node + 1])
                self._probs.append(probs[node + 1])
            rows.append(row)

    @property
    def k(self) -> int:
        """Number of candidates per row."""
        return len(self._ids[0])

    @property
    def num_rows(self) -> int:
        return len(self._ids)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The arguments of `from_arrays`, for a file. Drafts are in the order of `add`."""
        named = np.asarray(list(self._drafts), np.int32).reshape(-1, 2)
        probs = np.stack(self._probs)
        return {"parents": named[:, 0], "tokens": named[:, 1], "ids": np.stack(self._ids), "probs": probs}

    @classmethod
    def from_arrays(cls, text: IntArray, arrays: Mapping[str, npt.NDArray[Any]]) -> RecordedRows:
        """parents, tokens: [drafts]. ids, probs: [len(text) + drafts, k]."""
        ids, probs = arrays["ids"], arrays["probs"].astype(np.float32)
        rows = cls(text, ids, probs)
        named = zip(arrays["parents"].tolist(), arrays["tokens"].tolist(), strict=True)
        rows._drafts = {name: len(text) + index for index, name in enumerate(named)}
        return rows

    def _child(self, row: int, token: int) -> int:
        if row + 1 < len(self.text) and self.text[row + 1] == token:
            return row + 1
        return self._drafts.get((row, token), UNKNOWN)


def save_rows(path: Path, recorded: Sequence[RecordedRows], first_rows: FirstRows = NO_FIRST_ROWS) -> None:
    """Write rows of texts, and the first rows, to one compressed file. An existing file keeps its rows of other
    texts."""
    arrays = read_arrays(path) if path.is_file() else {}
    arrays |= {f"{_FIRST}.{key}": value for key, value in first_rows._asdict().items()}
    for rows in recorded:
        arrays |= {f"{_name(rows.text)}.{key}": value for key, value in rows.arrays().items()}
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)
    write_atomically(path, [content.getvalue()])


def load_rows(path: Path, texts: Sequence[IntArray]) -> tuple[list[RecordedRows], FirstRows]:
    """As `find_rows`. Raises UserError also if the file lacks one of the texts."""
    found, first_rows = find_rows(path, texts)
    recorded = [rows for rows in found if rows is not None]
    if len(recorded) < len(found):
        raise UserError(
            f"{path} has no rows of output {found.index(None) + 1}; record them with `lookahead research record`."
        )
    return recorded, first_rows


def find_rows(path: Path, texts: Sequence[IntArray]) -> tuple[list[RecordedRows | None], FirstRows]:
    """Read the rows of these texts, None for a text without, and the first rows, from a file of `save_rows`. Raises
    UserError if the file is missing or has another format."""
    try:
        with reading(path):
            stored = read_arrays(path)
        found = [
            RecordedRows.from_arrays(text, {key: stored[f"{_name(text)}.{key}"] for key in _ARRAYS})
            if f"{_name(text)}.ids" in stored
            else None
            for text in texts
        ]
        return found, FirstRows(*(stored[f"{_FIRST}.{key}"] for key in FirstRows._fields))
    except (ValueError, KeyError) as error:
        raise UserError(f"{path} is not a file of `lookahead research record`, or is damaged: {error}.") from error


def _name(text: IntArray) -> str:
    return hashlib.sha256(text.astype("<i4").tobytes()).hexdigest()[:16]
