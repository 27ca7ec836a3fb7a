"""An engine that returns recorded rows, to measure the time of a step without the model's pass."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lookahead_research.recorded_rows import UNKNOWN, RecordedRows
from pipeline.decoding.tree import FloatArray, IntArray
from pipeline.engine.contract import EngineLimits, EngineSequence, NodeLogits, ReuseCounters, VerifyItem


@dataclass(slots=True, eq=False)
class RecordedSequence:
    """A prefix of a recorded text. length: in tokens."""

    recorded: RecordedRows
    length: int
    num_cached_tokens: int = 0
    num_reused_tokens: int = 0

    @property
    def num_pending(self) -> int:
        return self.length - self.num_cached_tokens


@dataclass(frozen=True, slots=True)
class RecordedLogits:
    """Rows of one tree. choices: -1 if a row is unknown, so that no draft after it is accepted."""

    recorded: RecordedRows
    rows: IntArray
    choices: IntArray

    def row(self, index: int) -> FloatArray:
        raise RuntimeError("Whole rows of logits are not recorded; only their top candidates are.")

    def top_k(self, k: int) -> tuple[IntArray, FloatArray]:
        return self.recorded.rows(self.rows, k)

    def pending(self) -> list[FloatArray]:
        return []


class RecordedEngine:
    """Serves the recorded texts only. seconds: processor time of `verify`."""

    def __init__(self, recorded: Sequence[RecordedRows], prompt_lens: Sequence[int], limits: EngineLimits) -> None:
        self.limits = limits
        self.reuse = ReuseCounters()
        self.seconds = 0.0
        self._texts = {each.text[:length].tobytes(): each for each, length in zip(recorded, prompt_lens, strict=True)}

    def open(self, token_ids: IntArray, reuse: bool = True) -> RecordedSequence:
        return RecordedSequence(self._texts[np.asarray(token_ids, np.int32).tobytes()], len(token_ids))

    def verify(self, items: Sequence[VerifyItem]) -> list[NodeLogits | None]:
        started = time.process_time()
        results: list[NodeLogits | None] = []
        for item in items:
            sequence = _own(item.sequence)
            sequence.num_cached_tokens = sequence.length
            rows = sequence.recorded.find(sequence.length, item.tree)
            best, _ = sequence.recorded.rows(rows, 1)
            results.append(RecordedLogits(sequence.recorded, rows, np.where(rows == UNKNOWN, -1, best[:, 0])))
        self.seconds += time.process_time() - started
        return results

    def commit(self, sequence: EngineSequence, nodes: Sequence[int], token_ids: Sequence[int]) -> None:
        own = _own(sequence)
        own.num_cached_tokens += len(nodes)
        own.length += len(token_ids)

    def release(self, sequence: EngineSequence) -> None:
        """Nothing is held."""

    def forget_cached(self) -> None:
        """Does nothing: the engine caches nothing."""


def _own(sequence: EngineSequence) -> RecordedSequence:
    assert isinstance(sequence, RecordedSequence), "the sequence belongs to another engine"
    return sequence
