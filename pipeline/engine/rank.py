"""One rank of an engine in several processes: its part of every tree, and the loop of a follower."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import takewhile
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from pipeline.decoding.tree import DraftTree, FloatArray, IntArray, select_nodes
from pipeline.engine.contract import Engine, EngineSequence, NodeLogits, VerifyItem


class Order(NamedTuple):
    """A method of `Rank` and its arguments."""

    name: str
    arguments: tuple[Any, ...]


class Share(NamedTuple):
    """Work of the ranks for one sequence in a pass. end: number of its computed tokens after the pass. parts: nodes of
    each rank, ascending."""

    number: int
    tree: DraftTree
    end: int
    parts: list[IntArray]


class _Result(NamedTuple):
    """This rank's part of a verified tree. nodes: of the whole tree; the rows of logits are those of root and nodes."""

    logits: NodeLogits
    nodes: list[int]


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

    def verify(self, shares: Sequence[Share]) -> list[IntArray]:
        """[1 + part] the target's choices after the root and after the nodes of this rank's part, for each tree; empty
        if tokens stay pending."""
        chosen: list[Share] = []
        items: list[VerifyItem] = []
        for share in shares:
            sequence = self._sequences[share.number]
            # Accepted nodes that other ranks verified are pending here. This rank's cache may hold more of a prompt
            # than the leader's.
            num_pending = share.end - sequence.num_cached_tokens
            if num_pending > 0:
                keep = np.zeros(len(share.tree), np.bool_)
                keep[share.parts[self._rank]] = True
                chosen.append(share)
                items.append(VerifyItem(sequence, select_nodes(share.tree, keep), num_pending))
        self._results = {
            share.number: _Result(logits, share.parts[self._rank].tolist())
            for share, logits in zip(chosen, self.engine.verify(items) if items else (), strict=True)
            if logits is not None
        }
        found = [self._results.get(share.number) for share in shares]
        return [np.empty(0, np.int32) if result is None else result.logits.choices for result in found]

    def row(self, number: int, index: int) -> FloatArray:
        """[vocab] logits of a row of the whole tree; empty if this rank has not verified its node."""
        logits, nodes = self._results[number]
        rows = [-1, *nodes]
        return logits.row(rows.index(index - 1)) if index - 1 in rows else np.empty(0, np.float32)

    def top_k(self, number: int, k: int) -> tuple[IntArray, FloatArray]:
        """[1 + part, k] most probable tokens and their probabilities, in the rows of this rank."""
        return self._results[number].logits.top_k(k)

    def commit(self, number: int, nodes: Sequence[int], token_ids: Sequence[int]) -> None:
        """Keep the KV of the part of the accepted path that this rank verified; the rest becomes pending."""
        verified = self._results[number].nodes if number in self._results else []
        mine = [verified.index(node) for node in takewhile(verified.__contains__, nodes)]
        self.engine.commit(self._sequences[number], mine, token_ids)

    def release(self, number: int) -> None:
        self.engine.release(self._sequences.pop(number))

    def forget_cached(self) -> None:
        self.engine.forget_cached()


def follow(rank: Rank, connection: Connection) -> None:
    """Execute the leader's orders until the leader ends, and send back the result of the last one of each message."""
    with suppress(EOFError):
        while True:
            for order in connection.recv():
                result = getattr(rank, order.name)(*order.arguments)
            connection.send(result)
