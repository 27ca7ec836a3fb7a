"""No draft source, window, tree, batch or sampling option changes a token: everything against the plain table."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config.schema import (
    LookaheadConfig,
    PromptDraftConfig,
    RecyclingDraftConfig,
    SourceConfig,
    SuppliedDraftConfig,
    TrieDraftConfig,
    WindowDraftConfig,
)
from pipeline.decoding.drafting.drafter_factory import create_drafter
from pipeline.decoding.planning.planner import AdaptivePlanner, FixedPlanner, Planner
from pipeline.decoding.request import SamplingParams
from pipeline.decoding.tree import chain
from pipeline.engine.contract import EngineLimits
from pipeline.engine.scheduler import Scheduler
from pipeline.engine.submission import Submission
from tests import fakes
from tests.fakes import VOCAB_SIZE, HostileSource, TableEngine, cost_curve, make_request, plain_decode

ALL_SOURCES: tuple[SourceConfig, ...] = (
    TrieDraftConfig(branch_length=6, max_bytes=1 << 18),
    PromptDraftConfig(branch_length=6),
    WindowDraftConfig(),
    RecyclingDraftConfig(top_k=4),
    SuppliedDraftConfig(),
)
LIMITS = EngineLimits(8, 256, 400, 64, VOCAB_SIZE)
SAMPLINGS = (
    SamplingParams(),
    SamplingParams(temperature=0.8, seed=1),
    SamplingParams(temperature=1.2, top_k=5, seed=2),
    SamplingParams(temperature=1.0, top_p=0.7, seed=3),
    SamplingParams(temperature=1.0, min_p=0.1, seed=4),
    SamplingParams(repetition_penalty=1.4),
    SamplingParams(temperature=0.9, presence_penalty=0.6, frequency_penalty=0.4, prompt_ignore_length=3, seed=5),
    SamplingParams(bad_words=((3,), (4, 5)), embedding_bias=np.linspace(-1, 1, VOCAB_SIZE, dtype=np.float32)),
)


def make_scheduler(
    sources: Sequence[SourceConfig],
    lookahead: tuple[int, int, int],
    planner: Planner | None = None,
    max_batch_size: int = 8,
) -> Scheduler:
    window, ngram, verification = lookahead
    config = LookaheadConfig.of(window, ngram, verification, origin="test")
    limits = EngineLimits(max_batch_size, LIMITS.max_seq_len, LIMITS.max_num_tokens, 64, VOCAB_SIZE)
    drafter = create_drafter(sources, config, VOCAB_SIZE)
    return fakes.make_scheduler(engine=TableEngine(limits), drafter=drafter, planner=planner, budget=(40, 8))


def mixed_submissions(strategies: Sequence[str], prompts: Sequence[list[int]]) -> list[Submission]:
    submissions = []
    for number, sampling in enumerate(SAMPLINGS):
        request = make_request(
            prompts[number % len(prompts)],
            12 + 5 * number,
            sampling=sampling,
            end_ids=frozenset({0}),
            min_new_tokens=2,
            stop_sequences=((7, 8, 9),),
            namespace=("a", "b")[number % 2],
        )
        submissions.append(
            Submission(
                request,
                strategies[number % len(strategies)],
                supplied=chain([1, 2, 3] if number % 2 else plain_decode(request)[:8]),
            )
        )
    return submissions


def assert_exact(scheduler: Scheduler, submissions: Sequence[Submission]) -> None:
    results = scheduler.run(submissions)
    assert [result.output_ids for result in results] == [plain_decode(entry.request) for entry in submissions]
    assert not any(scheduler.drafter.failures.values())
    assert not scheduler.engine.held  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", [source.kind for source in ALL_SOURCES])
@pytest.mark.parametrize("max_batch_size", [1, 8])
def test_each_source_alone_changes_no_token(kind: str, max_batch_size: int) -> None:
    sources = [source for source in ALL_SOURCES if source.kind == kind]
    scheduler = make_scheduler(sources, (4, 3, 4), max_batch_size=max_batch_size)
    for _ in range(2):
        assert_exact(scheduler, mixed_submissions(["hybrid"], [[1, 2, 3], [5, 6, 5, 6, 5]]))


@pytest.mark.parametrize("lookahead", [(1, 1, 0), (1, 2, 1), (2, 2, 1), (3, 3, 3), (5, 4, 5), (7, 5, 7), (1, 6, 1)])
@pytest.mark.parametrize("strategy", ["lookahead", "hybrid"])
def test_windows_of_every_shape_change_no_token(lookahead: tuple[int, int, int], strategy: str) -> None:
    scheduler = make_scheduler(ALL_SOURCES, lookahead)
    assert_exact(scheduler, mixed_submissions([strategy], [[1], [2, 3], [4, 5, 6, 4, 5, 6, 4]]))


@settings(max_examples=15)
@given(
    st.lists(st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=30), min_size=1, max_size=4),
    st.lists(st.sampled_from(["none", "trie", "lookahead", "hybrid", "auto"]), min_size=1, max_size=4),
    st.booleans(),
)
def test_all_sources_strategies_and_sampling_options_in_one_batch(
    prompts: list[list[int]], strategies: list[str], adaptive: bool
) -> None:
    curve = cost_curve([(1, 1, 0, 1.0), (8, 1, 0, 1.3), (64, 1, 0, 3.0)])
    planner = AdaptivePlanner(curve) if adaptive else FixedPlanner()
    scheduler = make_scheduler(ALL_SOURCES, (4, 3, 4), planner)
    for _ in range(2):
        assert_exact(scheduler, mixed_submissions(strategies, prompts))


def test_hostile_sources_cost_speed_only() -> None:
    scheduler = fakes.make_scheduler(HostileSource(1, broken=0.5), engine=TableEngine(LIMITS), budget=(20, 6))
    submissions = mixed_submissions(["trie"], [[1, 2, 3]])
    assert [result.output_ids for result in scheduler.run(submissions)] == [
        plain_decode(entry.request) for entry in submissions
    ]
    assert scheduler.drafter.failures["trie"] > 0


def test_requests_may_ask_for_a_smaller_window_and_no_larger() -> None:
    scheduler = make_scheduler(ALL_SOURCES, (4, 3, 4))
    small = LookaheadConfig.of(2, 2, 1)
    large = LookaheadConfig.of(5, 3, 4)
    request = make_request(max_new_tokens=30)
    (result,) = scheduler.run([Submission(request, "lookahead", lookahead=small)])
    assert result.output_ids == plain_decode(request)
    from pipeline.errors import RequestError

    with pytest.raises(RequestError, match=r"\(5, 3, 4\); this engine allows at most \(4, 3, 4\)"):
        scheduler.run([Submission(make_request(), "lookahead", lookahead=large)])
    (result,) = scheduler.run([Submission(again := make_request(max_new_tokens=30), "lookahead")])
    assert result.output_ids == plain_decode(again)


def test_a_window_that_is_right_beyond_the_last_place_of_a_sequence_ends_it_there() -> None:
    scheduler = make_scheduler([WindowDraftConfig()], (5, 2, 1))
    # The next token is always 1, and so are all guesses of the window.
    always_one = SamplingParams(embedding_bias=np.where(np.arange(VOCAB_SIZE) == 1, 99, 0).astype(np.float32))
    prompts = [[1] * length for length in range(LIMITS.max_seq_len - 12, LIMITS.max_seq_len)]
    submissions = [Submission(make_request(prompt, 100, sampling=always_one), "lookahead") for prompt in prompts]
    assert_exact(scheduler, submissions)
