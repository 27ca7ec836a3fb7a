"""Measures the trie at growing sizes: insertion, memory, and retrieval of draft trees.

Tokens come from texts of the user or from a synthetic stream. The stream is a Markov chain whose states have few,
Zipf-distributed successors, so that strings repeat about as often as in real text. Drafts are retrieved for held-out
sequences.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from lookahead_research.trie_peers import PromptLookup
from pipeline.decoding.tree import DraftTree, IntArray, agreeing_path
from pipeline.decoding.trie import Trie
from pipeline.decoding.trie.estimator import Estimator
from pipeline.decoding.warm_up import warm_up
from pipeline.errors import UserError

SEQUENCE_LEN = 1024
CONTEXT_LEN = 64
VOCABULARY = 32_000


@dataclass(frozen=True, slots=True)
class Measurement:
    """Measurement of a draft source at one size. num_tokens: inserted so far. mean_accepted: accepted tokens per
    draft."""

    source: str
    num_tokens: int
    insert_tokens_per_s: float
    mean_draft_nodes: float
    mean_accepted: float
    retrieval_us_p50: float
    retrieval_us_p99: float
    retrieval_us_max: float


@dataclass(frozen=True, slots=True)
class TrieMeasurement(Measurement):
    """Measurement of the trie. num_held: tokens in the trie. bytes_per_token: memory in use per token in the trie."""

    num_held: int
    num_nodes: int
    bytes_per_token: float
    allocated_bytes: int
    insert_worst_ms: float


def synthetic_stream(num_tokens: int, seed: int) -> list[IntArray]:
    """Sequences of `SEQUENCE_LEN` tokens from a Markov chain of order 2 over a Zipf vocabulary: `num_tokens` tokens to
    insert and some held-out ones."""
    rng = np.random.default_rng(seed)
    num_sequences = -(-int(num_tokens * 1.02) // SEQUENCE_LEN) + 1
    result = np.empty((num_sequences, SEQUENCE_LEN), np.int64)
    state = rng.integers(0, 1 << 30, num_sequences)
    for index in range(SEQUENCE_LEN):
        # choice: index of the successor of the last two tokens, Zipf-distributed. The token is a hash of both, with a
        # Zipf-like distribution.
        choice = np.minimum(rng.zipf(1.6, num_sequences), 5000)
        mixed = (state * 1_000_003 + choice * 7919) % (1 << 31)
        spread = (mixed * 2_654_435_761 % (1 << 32)) / float(1 << 32)
        token = np.minimum(VOCABULARY**spread, VOCABULARY - 1).astype(np.int64)
        result[:, index] = token
        state = ((state % VOCABULARY) * VOCABULARY + token) % (1 << 30)
    return list(result.astype(np.int32))


def split_texts(texts: Iterable[IntArray]) -> list[IntArray]:
    """Split texts into sequences of 3 to `SEQUENCE_LEN` tokens; leaves shorter ones out, in which nothing can be
    drafted. Raises UserError for fewer than 100 tokens."""
    sequences = [text[at : at + SEQUENCE_LEN] for text in texts for at in range(0, len(text), SEQUENCE_LEN)]
    sequences = [sequence for sequence in sequences if len(sequence) > 2]
    if sum(map(len, sequences)) < 100:
        raise UserError("The files hold fewer than 100 tokens, in texts of at least three; give more text.")
    return sequences


class _InsertTimer:
    """Inserts, and measures the time since the last size."""

    def __init__(self, insert: Callable[[IntArray], object]) -> None:
        self._insert = insert
        self.reset()

    def reset(self) -> None:
        self.num_tokens, self.seconds, self.worst = 0, 0.0, 0.0

    def __call__(self, sequence: IntArray) -> None:
        started = time.perf_counter()
        self._insert(sequence)
        took = time.perf_counter() - started
        self.num_tokens += len(sequence)
        self.seconds += took
        self.worst = max(self.worst, took)

    @property
    def rate(self) -> float:
        return self.num_tokens / self.seconds


def bench_trie(
    sequences: Sequence[IntArray],
    sizes: Sequence[int],
    branch_length: int = 12,
    draft_nodes: int = 64,
    max_bytes: int | None = None,
    num_queries: int = 2000,
    on_progress: Callable[[int], None] = lambda num_tokens: None,
    peers: Mapping[str, PromptLookup] = MappingProxyType({}),
) -> list[Measurement]:
    """Measure after the insertion of each number of tokens in `sizes` (ascending), and of all tokens if there are
    fewer. sequences: of at least three tokens; one in a hundred is held out. num_queries: drafts at each size.
    max_bytes: limit of the trie. on_progress: called with the number of inserted tokens. peers: other sources by name,
    with a tenth of the queries."""
    held_out = sequences[::100]
    inserted = [sequence for index, sequence in enumerate(sequences) if index % 100] or held_out
    warm_up()
    trie = Trie(branch_length, max_bytes)
    timers = {"": _InsertTimer(trie.insert)} | {name: _InsertTimer(peer.insert) for name, peer in peers.items()}
    results: list[Measurement] = []
    num_tokens, remaining = 0, list(sizes)
    for index, sequence in enumerate(inserted):
        for timer in timers.values():
            timer(sequence)
        num_tokens += len(sequence)
        on_progress(num_tokens)
        if remaining and (num_tokens >= remaining[0] or index == len(inserted) - 1):
            while remaining and num_tokens >= remaining[0]:
                remaining.pop(0)
            results.append(_measure(trie, held_out, num_tokens, draft_nodes, num_queries, timers[""]))
            for name, peer in peers.items():
                retrieval = _measure_retrieval(peer.propose, held_out, max(1, num_queries // 10))
                results.append(Measurement(name, num_tokens, timers[name].rate, **retrieval))
            for timer in timers.values():
                timer.reset()
            if not remaining:
                break
    return results


def _measure(
    trie: Trie,
    held_out: Sequence[IntArray],
    num_tokens: int,
    draft_nodes: int,
    num_queries: int,
    inserting: _InsertTimer,
) -> TrieMeasurement:
    estimator, own = Estimator(trie.branch_length), Trie(trie.branch_length)

    def grow(context: IntArray) -> DraftTree:
        return estimator.grow(own, trie, "", context, draft_nodes, trie.branch_length)

    def learn(context: IntArray, following: IntArray) -> None:
        estimator.learn(own, trie, "", context, following[:2])

    retrieval = _measure_retrieval(grow, held_out, num_queries, learn)
    statistics = trie.statistics
    return TrieMeasurement(
        source="trie",
        num_tokens=num_tokens,
        num_held=statistics.num_tokens,
        num_nodes=statistics.num_nodes,
        bytes_per_token=statistics.used_bytes / statistics.num_tokens,
        allocated_bytes=statistics.num_bytes,
        insert_tokens_per_s=inserting.rate,
        insert_worst_ms=inserting.worst * 1e3,
        **retrieval,
    )


def _measure_retrieval(
    propose: Callable[[IntArray], DraftTree],
    held_out: Sequence[IntArray],
    num_queries: int,
    learn: Callable[[IntArray, IntArray], None] = lambda context, following: None,
) -> dict[str, float]:
    """The retrieval fields of a measurement. learn: called with each context and its continuation, untimed."""
    rng = np.random.default_rng(0)
    times, sizes, accepted = [], [], []
    for _ in range(num_queries):
        text = held_out[int(rng.integers(len(held_out)))]
        end = int(rng.integers(1, len(text) - 1))
        context, following = text[max(0, end - CONTEXT_LEN) : end], text[end:]
        started = time.perf_counter()
        tree = propose(context)
        times.append((time.perf_counter() - started) * 1e6)
        sizes.append(len(tree))
        accepted.append(len(agreeing_path(tree, following.tolist())))
        learn(context, following)
    return {
        "mean_draft_nodes": float(np.mean(sizes)),
        "mean_accepted": float(np.mean(accepted)),
        "retrieval_us_p50": float(np.percentile(times, 50)),
        "retrieval_us_p99": float(np.percentile(times, 99)),
        "retrieval_us_max": float(np.max(times)),
    }
