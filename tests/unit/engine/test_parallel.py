"""Lookahead parallelism over ranks in threads: the tokens of one process for any drafts."""

import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config.schema import LookaheadConfig
from pipeline.decoding.drafting.drafter_factory import create_drafter
from pipeline.decoding.tree import path_to, tree_from_lists
from pipeline.engine.contract import Engine, EngineLimits, VerifyItem
from pipeline.engine.parallel import ParallelEngine, joined
from pipeline.engine.rank import Order, Rank, Share, follow
from pipeline.engine.scheduler import Scheduler
from pipeline.engine.torch.engine import TorchEngine
from tests.fakes import VOCAB_SIZE, TableEngine, TableSequence, make_request, make_scheduler, plain_decode
from tests.patience import PATIENCE_S
from tests.unit.engine.test_exactness import ALL_SOURCES, LIMITS, mixed_submissions
from tests.unit.engine.torch.devices import DEVICE
from tests.unit.engine.torch.test_torch_engine import LIMITS as TORCH_LIMITS
from tests.unit.engine.torch.test_torch_engine import reference_logits, tiny_model


class LaggingTable(TableEngine):
    """A rank that accepts tokens whose nodes other ranks verified; it computes them in its next pass."""

    def commit(self, sequence: TableSequence, nodes: Sequence[int], token_ids: Sequence[int]) -> None:
        sequence.tokens += token_ids
        sequence.num_cached_tokens += len(nodes)

    def forget_cached(self) -> None: ...


@dataclass
class ThreadLine:
    """Both ends: the leader's, and with `rank` a follower's."""

    num_ranks: int
    orders: list[Any] = field(default_factory=list)
    given: list[Any] = field(default_factory=list)
    num_sent: int = 0
    num_collected: int = 0

    def send(self, orders: Sequence[Order]) -> None:
        self.num_sent += 1
        for line in self.orders:
            line.put(list(orders))

    def collect(self, mine: Any) -> list[Any]:
        self.num_collected += 1
        return [mine, *(given.get(timeout=PATIENCE_S) for given in self.given)]

    def close(self) -> None:
        for line in self.orders:
            line.put(None)


@dataclass
class ThreadEnd:
    orders: Any
    given: Any

    def recv(self) -> list[Order]:
        if (orders := self.orders.get(timeout=PATIENCE_S)) is None:
            raise EOFError
        return orders  # type: ignore[no-any-return]

    def send(self, mine: Any) -> None:
        self.given.put(mine)


@contextmanager
def parallel(engines: Sequence[Engine]) -> Iterator[tuple[ParallelEngine, ThreadLine]]:
    line = ThreadLine(len(engines))
    threads = []
    for rank, engine in enumerate(engines[1:], 1):
        line.orders.append(queue.Queue())
        line.given.append(queue.Queue())
        end = ThreadEnd(line.orders[-1], line.given[-1])
        threads.append(threading.Thread(target=follow, args=(Rank(engine, rank), end), daemon=True))
        threads[-1].start()
    leader = ParallelEngine(engines[0], line)
    yield leader, line
    leader.close()
    for thread in threads:
        thread.join(timeout=PATIENCE_S)
        assert not thread.is_alive()


def tables(num_ranks: int) -> list[Engine]:
    # A rank computes accepted tokens again, in passes that may be a little longer than the scheduler's limit.
    limits = EngineLimits(8, LIMITS.max_seq_len, 10 * LIMITS.max_num_tokens, 64, VOCAB_SIZE)
    return [LaggingTable(limits) for _ in range(num_ranks)]


def scheduler_over(engine: ParallelEngine) -> Scheduler:
    lookahead = LookaheadConfig.of(4, 3, 4)
    drafter = create_drafter(ALL_SOURCES, lookahead, VOCAB_SIZE)
    return make_scheduler(engine=engine, drafter=drafter, budget=(40, 8), prefill_chunk=16)


@pytest.mark.parametrize("num_ranks", [1, 2, 5])
@settings(max_examples=3)
@given(
    prompts=st.lists(st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=30), min_size=1, max_size=4),
    strategies=st.lists(st.sampled_from(["none", "trie", "lookahead", "hybrid"]), min_size=1, max_size=4),
)
def test_no_number_of_ranks_changes_a_token(num_ranks: int, prompts: list[list[int]], strategies: list[str]) -> None:
    engines = tables(num_ranks)
    with parallel(engines) as (engine, _):
        scheduler = scheduler_over(engine)
        for _ in range(2):
            submissions = mixed_submissions(strategies, prompts)
            results = scheduler.run(submissions)
            assert [result.output_ids for result in results] == [plain_decode(entry.request) for entry in submissions]
        assert not any(scheduler.drafter.failures.values())
    assert not engines[0].held  # type: ignore[attr-defined]


def test_greedy_ranks_speak_once_per_step() -> None:
    lookahead = LookaheadConfig.of(5, 3, 3)
    from pipeline.engine.submission import Submission

    engines = tables(3)
    with parallel(engines) as (engine, line):
        sources = [source for source in ALL_SOURCES if source.kind == "window"]
        drafter = create_drafter(sources, lookahead, VOCAB_SIZE)
        scheduler = make_scheduler(engine=engine, drafter=drafter, budget=(40, 8), prefill_chunk=64)
        request = make_request([1, 2, 3], 60)
        (result,) = scheduler.run([Submission(request, "lookahead")])
        assert result.output_ids == plain_decode(request)
        assert line.num_sent == line.num_collected == result.statistics.num_steps < 60


def test_each_row_is_that_of_the_first_rank_that_verified_it() -> None:
    parts = [np.asarray(part, np.int32) for part in ([0, 1, 2], [0, 3], [])]
    share = Share(0, tree_from_lists([5, 6, 7, 8], [-1, 0, 0, 0]), 9, parts)
    found = [np.full(len(part) + 1, rank) for rank, part in enumerate(parts)]
    assert joined(share, found).tolist() == [0, 0, 0, 0, 1]


def test_torch_ranks_that_lack_accepted_nodes_compute_them_again() -> None:
    reference = tiny_model()
    engines = [TorchEngine(tiny_model().to(DEVICE), TORCH_LIMITS) for _ in range(2)]
    random = np.random.default_rng(0)
    tokens = random.integers(0, TORCH_LIMITS.vocab_size, 9).tolist()
    with parallel(engines) as (engine, _):
        sequence = engine.open(np.asarray(tokens))
        assert engine.verify([VerifyItem(sequence, num_pending=4)]) == [None]
        for node in (6, 1, 7, 4, -1, 5):
            tree = tree_from_lists(random.integers(0, TORCH_LIMITS.vocab_size, 8).tolist(), [-1, -1, 0, 1, 1, 2, 4, 6])
            (logits,) = engine.verify([VerifyItem(sequence, tree)])
            assert logits is not None
            ids, probabilities = logits.top_k(3)
            for row in range(len(tree) + 1):
                path = tree.token_ids[path_to(tree, row - 1)].tolist() if row else []
                expected = reference_logits(reference, tokens + path)
                np.testing.assert_allclose(logits.row(row), expected, atol=2e-4)
                assert logits.choices[row] == ids[row, 0] == expected.argmax()
                assert 0 < probabilities[row, 2] <= probabilities[row, 0] <= 1
            path = path_to(tree, node) if node >= 0 else []
            kept = [*tree.token_ids[path].tolist(), int(random.integers(0, TORCH_LIMITS.vocab_size))]
            engine.commit(sequence, path, kept)
            tokens += kept
        engine.release(sequence)
        engine.forget_cached()
        assert engine.open(np.asarray(tokens)).num_reused_tokens == 0
