"""Lookahead parallelism (arXiv 2402.02057): several ranks, each with the whole model, split every draft tree.

    leader      scheduler -> verify -> split the trees -> its own part -> choices of all nodes -> accept -> commit
                                 |  sent                      ^  collected
    follower                     +-> its part of every tree --+

The ranks communicate once per step. The leader sends the trees and the tokens accepted since, and collects the target's
choice for every node. Only sampling (whole rows of logits) and token recycling (candidates) collect more. Each row of
logits comes from one rank.

A rank lacks the KV of accepted nodes that another rank verified. They stay pending there and are part of its next pass.
The leader implements `Engine`, so schedulers do not depend on ranks.

With tensor parallelism each rank holds a shard of every layer instead. All ranks verify the whole tree (`whole_tree`),
and the leader has all logits.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pipeline.decoding.split import split_tree
from pipeline.decoding.tree import DraftTree, FloatArray, IntArray
from pipeline.engine.contract import Engine, EngineLimits, EngineSequence, NodeLogits, ReuseCounters, VerifyItem
from pipeline.engine.rank import Order, Rank, Share
from pipeline.errors import RequestError


class Leader(Protocol):
    """The leader's connection to its followers."""

    @property
    def num_ranks(self) -> int: ...

    def send(self, orders: Sequence[Order]) -> None:
        """Send orders to all followers, which respond with the result of the last one."""

    def collect(self, mine: Any) -> list[Any]:
        """Receive the results of all followers. Returns those of all ranks in order. mine: that of the leader."""

    def close(self) -> None: ...


@dataclass(slots=True, eq=False)
class ParallelSequence:
    """The leader's view of a sequence. A rank may have less of its KV."""

    number: int
    num_tokens: int
    num_cached_tokens: int
    num_reused_tokens: int

    @property
    def num_pending(self) -> int:
        return self.num_tokens - self.num_cached_tokens


@dataclass(frozen=True, slots=True)
class ParallelLogits:
    """Logits of one tree, computed by one or more ranks."""

    engine: ParallelEngine
    share: Share
    choices: IntArray

    def row(self, index: int) -> FloatArray:
        return self.engine.row(self.share, index)

    def top_k(self, k: int) -> tuple[IntArray, FloatArray]:
        return self.engine.top_k(self.share, k)

    def pending(self) -> list[FloatArray]:
        return []


class ParallelEngine:
    """Implements `pipeline.engine.contract.Engine` over several ranks. engine: that of rank 0, the leader."""

    def __init__(
        self,
        engine: Engine,
        leader: Leader,
        split: Callable[[DraftTree, int], list[IntArray]] = split_tree,
    ) -> None:
        """split: returns the nodes of a tree that each rank verifies."""
        self.limits: EngineLimits = engine.limits
        self._split = split
        self._rank = Rank(engine, 0)
        self._leader = leader
        self._numbers = itertools.count()
        self._orders: list[Order] = []  # sent together with the next order that has a result

    def open(self, token_ids: IntArray, reuse: bool = True) -> ParallelSequence:
        if not reuse:
            raise RequestError(
                "log probabilities and logits of the prompt need an engine in one process; leave them out, or serve "
                "without engine.lookahead_parallel and tensor parallelism"
            )
        number = next(self._numbers)
        opened: EngineSequence = self._order_later("open", number, token_ids)
        return ParallelSequence(number, len(token_ids), opened.num_cached_tokens, opened.num_reused_tokens)

    def verify(self, items: Sequence[VerifyItem]) -> list[NodeLogits | None]:
        shares: list[Share] = []
        for item in items:
            sequence = _own(item.sequence)
            sequence.num_cached_tokens += sequence.num_pending if item.num_pending is None else item.num_pending
            parts = self._split(item.tree, self._leader.num_ranks)
            shares.append(Share(sequence.number, item.tree, sequence.num_cached_tokens, parts))
        choices = zip(*self._order("verify", shares), strict=True)
        return [
            ParallelLogits(self, share, joined(share, found)) if len(found[0]) else None
            for share, found in zip(shares, choices, strict=True)
        ]

    def row(self, share: Share, index: int) -> FloatArray:
        """[vocab] logits of one row of a verified tree."""
        mine = self._rank.row(share.number, index)
        return mine if len(mine) else next(filter(len, self._order("row", share.number, index)))

    def top_k(self, share: Share, k: int) -> tuple[IntArray, FloatArray]:
        """[n + 1, k] most probable tokens and their probabilities, of a verified tree."""
        if len(share.parts[0]) == len(share.tree):
            return self._rank.top_k(share.number, k)
        ids, probabilities = zip(*self._order("top_k", share.number, k), strict=True)
        return joined(share, ids), joined(share, probabilities)

    def commit(self, sequence: EngineSequence, nodes: Sequence[int], token_ids: Sequence[int]) -> None:
        own = _own(sequence)
        tokens = [int(token) for token in token_ids]
        self._order_later("commit", own.number, [int(node) for node in nodes], tokens)
        own.num_tokens += len(tokens)
        own.num_cached_tokens += len(nodes)

    def release(self, sequence: EngineSequence) -> None:
        self._order_later("release", _own(sequence).number)

    def forget_cached(self) -> None:
        """Drop the KV of released sequences on all ranks."""
        self._order_later("forget_cached")

    @property
    def reuse(self) -> ReuseCounters:
        """Counts of the leader's engine. All ranks open the same sequences."""
        return self._rank.engine.reuse

    def close(self) -> None:
        """End the followers. Calling it again does nothing."""
        self._leader.close()

    def _order(self, name: str, *arguments: Any) -> list[Any]:
        """Call a method of all ranks. Returns their results in order."""
        self._leader.send([*self._orders, Order(name, arguments)])
        self._orders.clear()
        return self._leader.collect(getattr(self._rank, name)(*arguments))

    def _order_later(self, name: str, *arguments: Any) -> Any:
        """Call a method of this rank, and of the others before their next order with a result. Returns this rank's."""
        result = getattr(self._rank, name)(*arguments)
        self._orders.append(Order(name, arguments))
        return result


def joined(share: Share, found: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """[n + 1, ...] rows of a whole tree, root first. found: [1 + part, ...] those of each rank. Of a node that several
    ranks have verified, the row of the first one counts."""
    rows = np.empty((len(share.tree) + 1, *found[0].shape[1:]), found[0].dtype)
    for part, own in reversed(list(zip(share.parts, found, strict=True))):
        rows[np.append(0, part + 1)] = own
    return rows


def whole_tree(tree: DraftTree, num_ranks: int) -> list[IntArray]:
    """The split for tensor parallelism, where all ranks compute every node together."""
    return [np.arange(len(tree), dtype=np.int32)] * num_ranks


def _own(sequence: EngineSequence) -> ParallelSequence:
    assert isinstance(sequence, ParallelSequence), "the sequence belongs to another engine"
    return sequence
