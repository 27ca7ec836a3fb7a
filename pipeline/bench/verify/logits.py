"""Compares the bits of logits with drafts and without: the rows from which output tokens were chosen.

A wrapper of the engine keeps the logits of each pass. When a path is accepted, it stores a hash of each row from which
a token was chosen, by the token's position. So it compares the rows of the actual trees in their actual batches.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pipeline.decoding.tree import IntArray
from pipeline.engine.contract import Engine, EngineLimits, EngineSequence, NodeLogits, ReuseCounters, VerifyItem

# Suffix of a decoding's name for comparisons of rows instead of tokens.
LOGITS = "logits"


@dataclass(slots=True, eq=False)
class HashedSequence:
    """A sequence of the wrapped engine. rows: by position in the sequence, hash of the logits from which the token was
    chosen."""

    own: EngineSequence
    tokens: list[int]
    rows: dict[int, bytes] = field(default_factory=dict)
    pass_logits: NodeLogits | None = None
    first_position: int = 0

    @property
    def num_cached_tokens(self) -> int:
        return self.own.num_cached_tokens

    @property
    def num_reused_tokens(self) -> int:
        return self.own.num_reused_tokens

    @property
    def pending(self) -> Sequence[int]:
        return self.own.pending


class RecordingEngine:
    """Wraps a `pipeline.engine.contract.Engine` and records its logits."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._recorded: list[HashedSequence] = []

    @property
    def limits(self) -> EngineLimits:
        return self._engine.limits

    @property
    def reuse(self) -> ReuseCounters:
        return self._engine.reuse

    def take(self) -> list[HashedSequence]:
        """Return the sequences opened since the last call that have committed tokens, in order of opening."""
        taken = [sequence for sequence in self._recorded if sequence.rows]
        self._recorded = []
        return taken

    def open(self, token_ids: IntArray, reuse: bool = True) -> HashedSequence:
        opened = HashedSequence(self._engine.open(token_ids, reuse), np.asarray(token_ids).tolist())
        self._recorded.append(opened)
        return opened

    def verify(self, items: Sequence[VerifyItem]) -> list[NodeLogits | None]:
        sequences = [_hashed(item.sequence) for item in items]
        for sequence in sequences:
            sequence.first_position = sequence.num_cached_tokens + len(sequence.pending)
        results = self._engine.verify(
            [
                VerifyItem(sequence.own, item.tree, item.num_pending, item.pending_rows)
                for sequence, item in zip(sequences, items, strict=True)
            ]
        )
        for sequence, result in zip(sequences, results, strict=True):
            sequence.pass_logits = result
        return results

    def commit(self, sequence: EngineSequence, nodes: Sequence[int], token_ids: Sequence[int]) -> None:
        recorded = _hashed(sequence)
        assert recorded.pass_logits is not None, "tokens are committed after a pass"
        for number, node in enumerate((-1, *nodes)):
            recorded.rows[recorded.first_position + number] = row_hash(recorded.pass_logits, node + 1)
        recorded.pass_logits = None
        self._engine.commit(recorded.own, nodes, token_ids)

    def release(self, sequence: EngineSequence) -> None:
        self._engine.release(_hashed(sequence).own)

    def forget_cached(self) -> None:
        self._engine.forget_cached()


def row_hash(logits: NodeLogits, row: int) -> bytes:
    """Hash of the bits of one row; 0.0 and -0.0 differ."""
    return hashlib.blake2b(np.asarray(logits.row(row), np.float32).tobytes(), digest_size=16).digest()


def rows_by_prompt(
    sequences: Sequence[HashedSequence], prompts: Mapping[str, Sequence[int]]
) -> dict[str, list[dict[int, bytes]]]:
    """Group the recorded rows by prompt. prompts: token ids by prompt id. A sequence counts for the longest prompt that
    it begins with, and for all prompts with the same tokens. It may begin with more than the prompt, because a sequence
    that was resumed after an interruption begins with a part of the output."""
    found: dict[str, list[dict[int, bytes]]] = {prompt_id: [] for prompt_id in prompts}
    for sequence in sequences:
        fitting = [key for key, ids in prompts.items() if sequence.tokens[: len(ids)] == list(ids)]
        assert fitting, "every sequence was opened for one of the prompts"
        longest = max(len(prompts[key]) for key in fitting)
        for key in fitting:
            if len(prompts[key]) == longest:
                found[key].append(sequence.rows)
    return found


def first_other_bits(expected: dict[int, bytes], found: dict[int, bytes], prompt_len: int) -> tuple[int, int | None]:
    """Number of positions in both recordings, and the index of the first output token whose row differs, if any."""
    shared = sorted(expected.keys() & found.keys())
    different = next((position for position in shared if expected[position] != found[position]), None)
    return len(shared), None if different is None else different - prompt_len


def _hashed(sequence: EngineSequence) -> HashedSequence:
    assert isinstance(sequence, HashedSequence), "the sequence belongs to another engine"
    return sequence
