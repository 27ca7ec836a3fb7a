"""One rank of an engine in several processes: its part of every tree, and the loop of a follower."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from pipeline.decoding.tree import BoolArray, DraftTree, FloatArray, IntArray, select_nodes
from pipeline.engine.contract import Engine, EngineSequence, NodeLogits, VerifyItem


class Order(NamedTuple):
    """A method of `Rank` and its arguments."""

    name: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Share:
    """Work of the ranks for one sequence in a pass. end: number of its computed tokens after the pass. first_row: index
    of the tree's first row among the rows of the pass, None if tokens stay pending. parts: nodes of each rank."""

    number: int
    tree: DraftTree
    end: int
    first_row: int | None
    parts: list[IntArray]


def owners_of(num_nodes: int, parts: Sequence[IntArray]) -> IntArray:
    """[n + 1] the rank that reports the logits of the root and of each node: the first one that verifies it."""
    owners = np.zeros(num_nodes + 1, np.int32)
    for rank in reversed(range(len(parts))):
        owners[parts[rank] + 1] = rank
    owners[0] = 0
    return owners


class _Result(NamedTuple):
    """This rank's part of a verified tree. rows: [n + 1] for root and nodes of the whole tree, their rows in logits; 0
    also for nodes that this rank has not verified. owned: [n + 1] whether this rank reports the row."""

    logits: NodeLogits
    rows: IntArray
    owned: BoolArray


class Rank:
    """An engine and its sequences, under numbers that are the same on all ranks."""

    def __init__(self, engine: Engine, rank: int) -> None:
        self.engine = engine
        self._rank = rank
        self._sequences: dict[int, EngineSequence] = {}
        self._results: dict[int, _Result] = {}  # of the previous pass, per sequence

    def open(self, number: int, token_ids: IntArray) -> EngineSequence:
        sequence = self._sequences[number] = self.engine.open(token_ids)
        return sequence

    def verify(self, shares: Sequence[Share], num_rows: int) -> IntArray:
        """[num_rows] the target's choices in the rows that this rank reports, zero elsewhere."""
        rows = np.zeros(num_rows, np.int32)
        self._results.clear()
        chosen: list[Share] = []
        items: list[VerifyItem] = []
        for share in shares:
            sequence, part = self._sequences[share.number], share.parts[self._rank]
            # Accepted nodes that other ranks verified are pending here. This rank's cache may hold more of a prompt
            # than the leader's.
            num_pending = share.end - sequence.num_cached_tokens
            if num_pending > 0:
                keep = np.zeros(len(share.tree), np.bool_)
                keep[part] = True
                chosen.append(share)
                items.append(VerifyItem(sequence, select_nodes(share.tree, keep), num_pending))
        results = self.engine.verify(items) if items else []
        for share, logits in zip(chosen, results, strict=True):
            if logits is None or share.first_row is None:
                continue
            part = share.parts[self._rank]
            own_rows = np.zeros(len(share.tree) + 1, np.int32)
            own_rows[part + 1] = np.arange(1, len(part) + 1)
            owned = owners_of(len(share.tree), share.parts) == self._rank
            self._results[share.number] = _Result(logits, own_rows, owned)
            rows[share.first_row + np.flatnonzero(owned)] = logits.choices[own_rows[owned]]
        return rows

    def owns(self, number: int, index: int | None = None) -> bool:
        """Whether this rank reports a row of the whole tree, or all rows."""
        owned = self._results[number].owned
        return bool(owned.all() if index is None else owned[index])

    def row(self, number: int, index: int) -> FloatArray:
        """[vocab] logits of a row of the whole tree, zero if another rank reports it."""
        logits, own_rows, owned = self._results[number]
        return logits.row(int(own_rows[index])) if owned[index] else np.zeros(self.engine.limits.vocab_size, np.float32)

    def top_k(self, number: int, k: int) -> IntArray:
        """[2, n + 1, k] most probable tokens, and the bits of their probabilities; zero in rows of other ranks."""
        logits, own_rows, owned = self._results[number]
        found = np.zeros((2, len(own_rows), k), np.int32)
        ids, probabilities = logits.top_k(k)
        found[0, owned] = ids[own_rows[owned]]
        found[1, owned] = np.ascontiguousarray(probabilities, np.float32).view(np.int32)[own_rows[owned]]
        return found

    def commit(self, number: int, nodes: Sequence[int], token_ids: Sequence[int]) -> None:
        """Keep the KV of the part of the accepted path that this rank verified; the rest becomes pending."""
        result = self._results.get(number)
        rows = [] if result is None else result.rows[np.asarray(nodes, np.int64) + 1].tolist()
        mine = [row - 1 for row in takewhile(bool, rows)]
        self.engine.commit(self._sequences[number], mine, token_ids)

    def release(self, number: int) -> None:
        """Calling it again does nothing."""
        if (sequence := self._sequences.pop(number, None)) is not None:
            self.engine.release(sequence)

    def forget_cached(self) -> None:
        self.engine.forget_cached()


def follow(rank: Rank, connection: Connection) -> None:
    """Execute the leader's orders until the leader ends, and send back the arrays that they return."""
    with suppress(EOFError):
        while True:
            for order in connection.recv():
                result = getattr(rank, order.name)(*order.arguments)
                if isinstance(result, np.ndarray):
                    connection.send(result)
