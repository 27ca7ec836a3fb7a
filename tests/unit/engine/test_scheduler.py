"""The scheduler: exact outputs for mixed batches, limits, refusals, fairness."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.decoding.noise import NoiseKey
from pipeline.decoding.request import FinishReason, GenerationRequest, SamplingParams, StepResult
from pipeline.decoding.sources.base import DraftBudget
from pipeline.decoding.tree import DraftTree, IntArray, chain, tree_from_lists
from pipeline.engine.contract import EngineLimits
from pipeline.engine.submission import Submission
from pipeline.errors import RequestError
from tests.fakes import VOCAB_SIZE, HostileSource, TableEngine, make_request, make_scheduler, plain_decode, table_logits

sampling_params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    top_k=st.sampled_from([0, 4]),
    top_p=st.sampled_from([1.0, 0.8]),
    min_p=st.sampled_from([0.0, 0.05]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.5]),
    frequency_penalty=st.sampled_from([0.0, 0.3]),
    prompt_ignore_length=st.sampled_from([0, 2]),
    bad_words=st.sampled_from([(), ((5,), (1, 2))]),
    seed=st.integers(0, 3),
)


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=40),
            st.integers(1, 30),
            sampling_params,
            st.sampled_from(["none", "trie", "hybrid", "auto"]),
        ),
        min_size=1,
        max_size=8,
    ),
    st.integers(0, 100),
)
def test_mixed_batches_with_hostile_drafts_emit_exactly_the_targets_tokens(
    entries: list[tuple[list[int], int, SamplingParams, str]], seed: int
) -> None:
    scheduler = make_scheduler(source=HostileSource(seed))
    submissions = [
        Submission(
            make_request(
                prompt, length, sampling=sampling, end_ids=frozenset({0}), stop_sequences=((3, 4),), min_new_tokens=1
            ),
            strategy,
        )
        for prompt, length, sampling, strategy in entries
    ]
    results = scheduler.run(submissions)
    assert [result.output_ids for result in results] == [plain_decode(entry.request) for entry in submissions]
    assert scheduler.engine.held == []  # type: ignore[attr-defined]


def test_drafts_save_steps_and_every_token_is_counted_once() -> None:
    request = make_request(max_new_tokens=40)
    (plain,) = make_scheduler().run([Submission(request, "none")])
    (drafted,) = make_scheduler(source=HostileSource(broken=0.0)).run([Submission(request, "trie")])
    assert drafted.output_ids == plain.output_ids
    assert plain.statistics.num_steps == len(plain.output_ids) == 40
    assert drafted.statistics.num_steps < plain.statistics.num_steps
    assert sum(drafted.statistics.acceptance_lengths) == 40
    assert drafted.statistics.mean_acceptance_length == 40 / drafted.statistics.num_steps


def test_a_supplied_tree_is_verified_in_one_step() -> None:
    from pipeline.config.schema import SuppliedDraftConfig
    from pipeline.decoding.sources.supplied import SuppliedSource

    request = make_request(max_new_tokens=4)
    target = plain_decode(request)
    scheduler = make_scheduler(SuppliedSource(SuppliedDraftConfig()), budget=(10, 10))
    wrong = (target[0] + 1) % VOCAB_SIZE
    tree = tree_from_lists([wrong, target[0], target[1]], [-1, -1, 1])
    (result,) = scheduler.run([Submission(request, "trie", supplied=tree, max_steps=1)])
    assert result.output_ids == target[:3]
    assert result.finish_reason is None
    assert result.statistics.num_accepted_tokens == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda: Submission(make_request(prompt=[])), "prompt is empty"),
        (lambda: Submission(make_request(max_new_tokens=0)), "at least 1"),
        (lambda: Submission(make_request(max_new_tokens=-5)), "at least 1"),
        (lambda: Submission(make_request(prompt=[1] * 256)), "256 tokens"),
        (lambda: Submission(make_request(prompt=[1, VOCAB_SIZE])), f"token {VOCAB_SIZE} at position 1"),
        (lambda: Submission(make_request(prompt=[-1])), "token -1 at position 0"),
        (lambda: Submission(make_request(min_new_tokens=50)), "min_tokens"),
        (lambda: Submission(make_request(), "fast"), "one of none, lookahead"),
        (lambda: Submission(make_request(), supplied=chain([1] * 65)), "65 draft tokens"),
        (lambda: Submission(make_request(), supplied=chain([99])), "token 99"),
        (
            lambda: Submission(make_request(), supplied=DraftTree(np.zeros(2, np.int32), np.asarray([1, 0], np.int32))),
            "parent",
        ),
        (lambda: Submission(make_request(sampling=SamplingParams(temperature=-1))), "temperature"),
        (lambda: Submission(make_request(sampling=SamplingParams(temperature=np.inf))), "temperature is inf"),
        (lambda: Submission(make_request(sampling=SamplingParams(bad_words=((),)))), "word without tokens"),
        (
            lambda: Submission(
                make_request(sampling=SamplingParams(embedding_bias=np.full(VOCAB_SIZE, np.nan, np.float32)))
            ),
            "embedding_bias of token 0 is nan",
        ),
    ],
)
def test_a_bad_request_is_refused_with_a_sentence_and_affects_no_other(
    change: Callable[[], Submission], message: str
) -> None:
    scheduler = make_scheduler()
    with pytest.raises(RequestError, match=message):
        scheduler.submit(change(), lambda event: None)
    good = make_request()
    (result,) = scheduler.run([Submission(good)])
    assert result.output_ids == plain_decode(good)


class Scribbler(HostileSource):
    """Writes into every argument of one of the calls."""

    def __init__(self, where: str) -> None:
        super().__init__(broken=0.0)
        self._where = where

    def start(self, request_id: str, prompt_ids: IntArray, namespace: str) -> None:
        if self._where == "start":
            prompt_ids[:] = 7

    def propose(self, request_id: str, context: IntArray, budget: DraftBudget) -> DraftTree:
        tree = super().propose(request_id, context, budget)
        if self._where == "propose":
            context.sort()
        return tree

    def update(self, request_id: str, step: StepResult) -> None:
        if self._where == "lists":
            step.token_ids.clear()
            step.nodes.append(3)
        if self._where == "update":
            step.context[:] = 0


@pytest.mark.parametrize("where", ["start", "propose", "update", "lists"])
def test_a_source_that_writes_into_what_it_is_given_changes_no_token(where: str) -> None:
    scheduler = make_scheduler(source=Scribbler(where))
    sampling = SamplingParams(temperature=0.7, seed=3, repetition_penalty=2.0, bad_words=((5, 6),))
    request = make_request((1, 2, 3), 30, sampling=sampling, stop_sequences=((1, 1),))
    (result,) = scheduler.run([Submission(request, "trie")])
    assert result.output_ids == plain_decode(request)
    assert scheduler.drafter.failures["trie"]


def test_the_context_limit_ends_a_request() -> None:
    request = make_request(prompt=[1] * 250, max_new_tokens=100)
    (result,) = make_scheduler().run([Submission(request, "trie")])
    assert len(result.output_ids) == 6
    assert result.finish_reason is FinishReason.LENGTH
    assert result.output_ids == plain_decode(request)


def test_long_prompts_do_not_hold_up_running_requests() -> None:
    """While a prompt of 100 tokens is computed in chunks of 16, a running request gets a token every pass."""
    scheduler = make_scheduler()
    tokens: list[int] = []
    scheduler.submit(Submission(make_request(max_new_tokens=50), "none"), lambda event: tokens.extend(event.token_ids))
    scheduler.step()
    scheduler.submit(Submission(make_request(prompt=[2] * 100), "none"), lambda event: None)
    for step in range(6):
        scheduler.step()
        assert len(tokens) == step + 2


def test_short_prompts_do_not_hold_up_a_long_one() -> None:
    """With passes of 16 tokens, and new short prompts all the time, the long prompt is computed first."""
    scheduler = make_scheduler(engine=TableEngine(EngineLimits(4, 256, 16, 0, VOCAB_SIZE)))
    ended: list[str] = []

    def submit(request: GenerationRequest) -> None:
        scheduler.submit(
            Submission(request, "none"), lambda event: ended.append(event.request_id) if event.done else None
        )

    long = make_request([1] * 200, 1)
    submit(long)
    for _ in range(13):
        submit(make_request([2] * 16, 1))
        scheduler.step()
    assert ended == [long.request_id]


def test_lookup_table_is_deterministic() -> None:
    np.testing.assert_array_equal(table_logits([1, 2, 3]), table_logits([9, 1, 2, 3]))


def test_drafts_of_a_sampled_request_follow_its_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler, seen = make_scheduler(), []
    start = scheduler.drafter.start
    monkeypatch.setattr(scheduler.drafter, "start", lambda *given: (seen.append(given[-1]), start(*given)))
    sampling = SamplingParams(temperature=0.5, seed=7)
    scheduler.run([Submission(make_request([1, 2], 3, sampling=sampling), "trie")])
    assert seen == [NoiseKey(np.uint64(7), 0.5)]
