"""The first rows of token recycling: the model's most probable tokens after single tokens, computed once per model.

    <engines>/<model>/.first_rows/<digest of the weights in the files>.npz

Profiles with the same weights share them. BPE tokenizers number tokens by frequency, so the first few thousand ids make
up most of any text."""

from __future__ import annotations

import io
import math
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pipeline.decoding.drafting.first_rows import FirstRows
from pipeline.decoding.tree import DraftTree, IntArray
from pipeline.engine.artifact import FIRST_ROWS, Artifact
from pipeline.engine.backend import backend_of
from pipeline.engine.contract import Engine, VerifyItem
from pipeline.errors import BuildError
from pipeline.files import read_arrays, write_atomically

# Candidates per row.
WIDTH = 8


class StoredRows(NamedTuple):
    """First rows of a model with a vocabulary of this size."""

    rows: FirstRows
    vocab_size: int


def compute_first_rows(
    engine: Engine, context: IntArray, known: FirstRows, most_tokens: int, max_seconds: float = math.inf
) -> FirstRows:
    """Extend the known rows up to `most_tokens` tokens of the vocabulary. A row is computed after `context` [len], cut
    to its end if it takes more than half of a pass, and the token. Stops max_seconds after the first pass, in which an
    engine may compile."""
    limits = engine.limits
    context = context[-(min(limits.max_num_tokens, limits.max_seq_len) // 2) :]
    num_tokens = min(most_tokens, limits.vocab_size)
    width = min(WIDTH, limits.vocab_size)
    rows_per_pass = min(
        limits.max_draft_tokens, limits.max_num_tokens - len(context), limits.max_seq_len - len(context)
    )
    parts = [known] if len(known.ids) else []
    started = math.inf
    for first in range(len(known.ids), num_tokens, rows_per_pass):
        tokens = np.arange(first, min(first + rows_per_pass, num_tokens), dtype=np.int32)
        sequence = engine.open(context)
        try:
            # Siblings do not attend to each other, so one pass computes the rows of many tokens.
            (logits,) = engine.verify([VerifyItem(sequence, DraftTree(tokens, np.full(len(tokens), -1, np.int32)))])
        finally:
            engine.release(sequence)
        assert logits is not None, "nothing of the context is left pending"
        ids, probs = logits.top_k(width)
        parts.append(FirstRows(ids[1:], probs[1:]))
        started = min(started, time.monotonic())
        if time.monotonic() - started > max_seconds:
            break
    return FirstRows(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def first_rows_path(artifact: Artifact) -> Path:
    """Path of the first rows of an artifact's weights, computed or not."""
    fingerprint = artifact.manifest.fingerprint
    digest = backend_of(fingerprint.backend).files_digest(fingerprint)
    return artifact.folder.parent / FIRST_ROWS / f"{digest[:16]}.npz"


def save_first_rows(artifact: Artifact, stored: StoredRows) -> None:
    """Store rows, replacing older ones. Raises BuildError if they cannot be written."""
    content = io.BytesIO()
    rows = stored.rows
    np.savez(content, ids=rows.ids.astype(np.int32), probs=rows.probs.astype(np.float16), vocab_size=stored.vocab_size)
    path = first_rows_path(artifact)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, [content.getvalue()])
    except OSError as error:
        raise BuildError(f"The first rows cannot be written to {path}: {error.strerror}.") from error


def load_first_rows(artifact: Artifact) -> StoredRows | None:
    """The first rows of an artifact's weights; None if they were not computed, or if the file cannot be read."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        found = read_arrays(first_rows_path(artifact))
        rows = FirstRows(found["ids"], found["probs"].astype(np.float32))
        stored = StoredRows(rows, int(found["vocab_size"]))
        _check(stored)
        return stored
    return None


def _check(stored: StoredRows) -> None:
    """Raise ValueError if the arrays do not match each other and the vocabulary."""
    ids, probs = stored.rows
    if ids.dtype != np.int32 or ids.ndim != 2 or ids.shape != probs.shape:
        raise ValueError(f"ids {ids.shape} {ids.dtype} and probabilities {probs.shape} do not match")
    if ids.size and not (ids.min() >= 0 and ids.max() < stored.vocab_size):
        raise ValueError(f"a token lies outside the vocabulary 0..{stored.vocab_size - 1}")
