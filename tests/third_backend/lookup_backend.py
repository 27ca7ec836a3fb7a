"""A third engine backend in one file: the next token is looked up by the last one. No weights, no torch."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.backends.in_process import InProcessBackend
from pipeline.checkpoint.checkpoint import Checkpoint
from pipeline.checkpoint.convert import write_tokenizer
from pipeline.config.schema import ResolvedConfig
from pipeline.decoding.tree import FloatArray, IntArray
from pipeline.engine.artifact import ENGINE, TOKENIZER, Artifact
from pipeline.engine.backend import Backend, Note, Runtime
from pipeline.engine.contract import EngineLimits, ReuseCounters, VerifyItem
from pipeline.engine.fingerprint import Fingerprint

VOCAB_SIZE = 512
# The tokens of "a" to "z" follow each other in a ring; every other token leads to "a". The byte tokenizer of the tiny
# models has four special tokens first, then the bytes from "!" on.
OFFSET = 4 - ord("!")
FIRST, LAST = ord("a") + OFFSET, ord("z") + OFFSET
# A pass over this token never ends.
HANGS = "~"


def next_token(token: int) -> int:
    return token + 1 if FIRST <= token < LAST else FIRST


@dataclass
class LookupSequence:
    tokens: list[int]
    num_cached_tokens: int = 0
    num_reused_tokens: int = 0

    @property
    def num_pending(self) -> int:
        return len(self.tokens) - self.num_cached_tokens


def row_of(choice: int) -> FloatArray:
    logits = np.zeros(VOCAB_SIZE, np.float32)
    logits[choice] = 20.0
    return logits


@dataclass
class LookupLogits:
    choices: IntArray
    pending_choices: IntArray

    def row(self, index: int) -> FloatArray:
        return row_of(self.choices[index])

    def pending(self) -> list[FloatArray]:
        return [row_of(choice) for choice in self.pending_choices]

    def top_k(self, k: int) -> tuple[IntArray, FloatArray]:
        ids = np.stack([np.roll(np.arange(VOCAB_SIZE, dtype=np.int32), -choice)[:k] for choice in self.choices])
        return ids, np.tile(np.eye(1, k, dtype=np.float32), (len(self.choices), 1))


class LookupEngine:
    def __init__(self, limits: EngineLimits, table: Sequence[int]) -> None:
        self.limits = limits
        self.reuse = ReuseCounters()
        self._table = np.asarray(table, np.int32)

    def open(self, token_ids: IntArray, reuse: bool = True) -> LookupSequence:
        return LookupSequence(token_ids.tolist())

    def verify(self, items: Sequence[VerifyItem]) -> list[LookupLogits | None]:
        return [self._verify_one(item) for item in items]

    def _verify_one(self, item: VerifyItem) -> LookupLogits | None:
        sequence = item.sequence
        assert isinstance(sequence, LookupSequence)
        if ord(HANGS) + OFFSET in sequence.tokens:
            threading.Event().wait()
        num_pending = sequence.num_pending if item.num_pending is None else item.num_pending
        start, sequence.num_cached_tokens = sequence.num_cached_tokens, sequence.num_cached_tokens + num_pending
        pending = sequence.tokens[start : sequence.num_cached_tokens] if item.pending_rows else []
        if sequence.num_pending and not item.pending_rows:
            return None
        nodes = [] if sequence.num_pending else [sequence.tokens[-1], *item.tree.token_ids.tolist()]
        return LookupLogits(self._choices(nodes), self._choices(pending))

    def _choices(self, tokens: Sequence[int]) -> IntArray:
        return self._table[np.asarray(tokens, np.int32)]

    def commit(self, sequence: LookupSequence, nodes: Sequence[int], token_ids: Sequence[int]) -> None:
        sequence.tokens += token_ids
        sequence.num_cached_tokens += len(nodes)

    def release(self, sequence: LookupSequence) -> None:
        pass

    def forget_cached(self) -> None:
        pass


class LookupBackend(InProcessBackend):
    name = "lookup"

    def fingerprint(self, resolved: ResolvedConfig, checkpoint_hash: str) -> Fingerprint:
        return Fingerprint.of(resolved, checkpoint_hash, *self.runtime(resolved), flags={})

    def runtime(self, resolved: ResolvedConfig) -> Runtime:
        return Runtime({"lookup": "1.0"}, "any")

    def write_engine(self, resolved: ResolvedConfig, checkpoint: Checkpoint, note: Note, folder: Path) -> None:
        write_tokenizer(checkpoint, folder / TOKENIZER)
        engine = folder / ENGINE
        engine.mkdir()
        table = [next_token(token) for token in range(VOCAB_SIZE)]
        (engine / "config.json").write_text(json.dumps({"vocab_size": VOCAB_SIZE, "eos_token_id": VOCAB_SIZE - 1}))
        (engine / "table.json").write_text(json.dumps(table))

    def load_engine(self, artifact: Artifact) -> LookupEngine:
        sizes = artifact.resolved.profile.engine
        limits = EngineLimits(
            sizes.max_batch_size, sizes.max_seq_len, sizes.max_num_tokens, sizes.max_draft_tokens, VOCAB_SIZE
        )
        return LookupEngine(limits, json.loads((artifact.engine_dir / "table.json").read_text()))


BACKEND: Backend = LookupBackend()
