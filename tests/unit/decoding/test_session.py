"""The decode loop over a lookup table: the tokens of plain decoding for any drafts, and consistent counts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config.schema import PromptDraftConfig, TrieDraftConfig
from pipeline.decoding.drafting.drafter import Drafter
from pipeline.decoding.request import FinishReason, GenerationRequest, SamplingParams
from pipeline.decoding.sampling import choose_token
from pipeline.decoding.session import Session, StepOutcome, outcome_of_tokens
from pipeline.decoding.sources.base import DraftBudget, DraftSource
from pipeline.decoding.sources.prompt import PromptSource
from pipeline.decoding.sources.trie import TrieSource
from pipeline.decoding.tree import EMPTY_TREE, DraftTree, chain
from tests.fakes import VOCAB_SIZE, HostileSource, make_request, plain_decode, table_logits

BUDGET = DraftBudget(12, 6)


def session_of(request: GenerationRequest, *sources: DraftSource, max_seq_len: int = 256) -> Session:
    names = frozenset(source.name for source in sources)
    return Session(request, Drafter(sources, VOCAB_SIZE), names, BUDGET, max_seq_len)


def verified(session: Session, tree: DraftTree) -> StepOutcome:
    """The accepted path and one token more, each the table's own choice."""
    tokens: list[int] = []
    nodes: list[int] = []
    while True:
        context = session.context_with(tokens)
        tokens.append(choose_token(session.request, table_logits(context.tolist()), context))
        parent = nodes[-1] if nodes else -1
        below = [
            node for node in range(len(tree)) if (tree.parents[node], tree.token_ids[node]) == (parent, tokens[-1])
        ]
        if not below:
            return StepOutcome(nodes, tokens)
        nodes.append(below[0])


def run(session: Session) -> list[int]:
    emitted: list[int] = []
    while not session.finished:
        tree = session.propose()
        emitted += session.advance(tree, verified(session, tree))
    return emitted


@given(
    seed=st.integers(0, 2**16),
    prompt=st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=12),
    max_new_tokens=st.integers(1, 40),
    temperature=st.sampled_from([0.0, 0.7]),
    end_ids=st.sets(st.integers(0, VOCAB_SIZE - 1), max_size=2),
    stop=st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=3),
    max_seq_len=st.integers(16, 60),
)
@settings(max_examples=60)
def test_the_output_is_that_of_plain_decoding_and_the_counts_add_up(
    seed: int, prompt: list[int], max_new_tokens: int, temperature: float, end_ids: set[int], stop: list[int],
    max_seq_len: int,
) -> None:  # fmt: skip
    request = make_request(
        prompt, max_new_tokens, sampling=SamplingParams(temperature=temperature, seed=seed),
        end_ids=frozenset(end_ids), stop_sequences=(tuple(stop),),
    )  # fmt: skip
    expected = plain_decode(request, max_seq_len)
    for sources in (
        (),
        (HostileSource(seed),),
        (TrieSource(TrieDraftConfig(max_bytes=1 << 18)), PromptSource(PromptDraftConfig())),
    ):
        session = session_of(request, *sources, max_seq_len=max_seq_len)
        assert run(session) == session.output_ids == expected
        counts = session.statistics
        assert counts.num_steps == len(counts.acceptance_lengths)
        assert sum(counts.acceptance_lengths) == len(expected)
        # All but one token of a step were drafted; where the output ends within a draft, all of them.
        assert len(expected) - counts.num_steps <= counts.num_accepted_tokens <= len(expected)
        assert counts.num_accepted_tokens <= counts.num_draft_tokens
        assert sum(counts.accepted_by_source.values()) == counts.num_accepted_tokens


def test_accepted_tokens_are_counted_for_the_source_that_was_surest() -> None:
    class Oracle(HostileSource):
        """Knows the first token after the context."""

        def propose(self, request_id: str, context: np.ndarray, budget: DraftBudget) -> DraftTree:
            return chain([int(table_logits(context.tolist()).argmax())], [0.9])

    class Wrong(HostileSource):
        name = "prompt"

        def propose(self, request_id: str, context: np.ndarray, budget: DraftBudget) -> DraftTree:
            return chain([int(table_logits(context.tolist()).argmin())], [0.5])

    session = session_of(make_request(max_new_tokens=10), Wrong(), Oracle())
    run(session)
    assert session.statistics.accepted_by_source == {"trie": session.statistics.num_accepted_tokens}
    assert session.statistics.num_accepted_tokens >= 4


def test_a_target_that_tells_only_tokens_is_followed_along_the_path_that_carries_them() -> None:
    session = session_of(make_request(max_new_tokens=8))
    tree = chain([4, 5, 6])
    assert session.advance(tree, outcome_of_tokens(tree, [4, 5, 9])) == [4, 5, 9]
    assert session.statistics.num_accepted_tokens == 2
    assert session.context.tolist() == [1, 2, 3, 4, 5, 9]


@pytest.mark.parametrize("source", [HostileSource(), TrieSource(TrieDraftConfig(max_bytes=1 << 18))])
def test_a_cancelled_request_is_forgotten_and_stays_as_it_is(source: DraftSource) -> None:
    session = session_of(make_request(max_new_tokens=8), source)
    session.advance(EMPTY_TREE, verified(session, EMPTY_TREE))
    before = session.output_ids
    session.cancel()
    session.close()
    assert session.finish_reason is FinishReason.CANCELLED
    assert session.output_ids == before
