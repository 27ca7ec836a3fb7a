"""Sampling: truncation, penalties, keyed noise, and the distribution of the tokens."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.decoding.grammar.masks import TokenMask
from pipeline.decoding.noise import gumbel_noise
from pipeline.decoding.request import SamplingParams
from pipeline.decoding.sampling import choose_token, needs_logits
from pipeline.decoding.sampling_checks import LARGEST, check_sampling
from pipeline.errors import RequestError
from tests.fakes import VOCAB_SIZE, make_request, table_logits

LOGITS = np.asarray([1.0, 3.0, 2.0, 0.0, -1.0], np.float32)
CONTEXT = np.asarray([0, 0, 1], np.int32)


def chosen(context: np.ndarray = CONTEXT, logits: np.ndarray = LOGITS, **fields: object) -> int:
    request_fields = {name: fields.pop(name) for name in ("min_new_tokens", "end_ids") if name in fields}
    request = make_request(prompt=context.tolist(), sampling=SamplingParams(**fields), **request_fields)  # type: ignore[arg-type]
    return choose_token(request, logits, context)


def noise(seed: int, position: int, vocab_size: int) -> np.ndarray:
    return gumbel_noise(seed, position, np.arange(vocab_size))


def test_the_defaults_are_greedy() -> None:
    assert chosen() == 1
    assert not needs_logits(make_request())


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.5},
        {"repetition_penalty": 1.1},
        {"presence_penalty": 0.1},
        {"frequency_penalty": 0.1},
        {"bad_words": ((1,),)},
        {"embedding_bias": np.zeros(5, np.float32)},
    ],
)
def test_whatever_may_change_the_best_token_takes_the_logits(fields: dict[str, object]) -> None:
    assert needs_logits(make_request(sampling=SamplingParams(**fields)))  # type: ignore[arg-type]
    assert needs_logits(make_request(min_new_tokens=1))


@pytest.mark.parametrize(
    ("permitted", "banned", "token"),
    [
        ((0, 1, 2), (), 1),
        ((0, 2), (), 2),
        ((0, 2), (2,), 0),
        ((0, 2), (1,), 2),
        ((0, 2), (0, 2), 2),  # a ban of all permitted tokens does not count
        ((4,), (4,), 4),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 0.01])
def test_a_grammar_goes_before_bans(
    permitted: tuple[int, ...], banned: tuple[int, ...], token: int, temperature: float
) -> None:
    params = SamplingParams(temperature=temperature, bad_words=tuple((word,) for word in banned))
    mask = TokenMask(np.asarray([sum(1 << token for token in permitted)], np.int32))
    assert choose_token(make_request(sampling=params), LOGITS, CONTEXT, mask) == token


def test_sampled_tokens_follow_the_softmax_of_the_logits() -> None:
    """Chi-square of 20,000 draws against softmax(logits / T); 4 degrees of freedom, limit at p = 1e-4."""
    temperature, draws = 1.3, 20_000
    counts = np.bincount([chosen(temperature=temperature, seed=seed) for seed in range(draws)], minlength=5)
    weights = np.exp(LOGITS / temperature)
    expected = draws * weights / weights.sum()
    assert ((counts - expected) ** 2 / expected).sum() < 23.5


@pytest.mark.parametrize(
    ("fields", "allowed"),
    [
        ({"top_k": 2}, {1, 2}),
        ({"top_p": 0.3}, {1}),
        ({"top_p": 0.5}, {1, 2}),
        ({"min_p": 0.6}, {1, 2}),
        ({"top_k": 3, "top_p": 0.999, "min_p": 0.01}, {0, 1, 2}),
        ({"top_k": 1}, {1}),
        ({"bad_words": ((1,), (2,))}, {0, 3, 4}),
        ({"bad_words": ((0, 1, 1),)}, {0, 2, 3, 4}),
        ({"bad_words": ((0,),)}, {1, 2, 3, 4}),
        ({"bad_words": ((1, 1, 1),)}, {0, 1, 2, 3, 4}),
        ({"bad_words": tuple((token,) for token in range(5))}, {0, 1, 2, 3, 4}),
    ],
)
def test_truncation_leaves_exactly_these_tokens(fields: dict[str, object], allowed: set[int]) -> None:
    assert {chosen(temperature=3.0, seed=seed, **fields) for seed in range(400)} == allowed


def test_a_tiny_temperature_is_greedy_and_finite() -> None:
    with np.errstate(all="raise", under="ignore"):
        assert chosen(temperature=1e-30, seed=5) == 1


def test_a_huge_temperature_leaves_the_best_token_in_the_nucleus() -> None:
    assert {chosen(temperature=1e30, top_p=1e-6, seed=seed) for seed in range(20)} == {1}


def test_repetition_penalty_makes_a_seen_token_with_a_negative_score_less_likely() -> None:
    logits = np.asarray([-2.0, -2.5, -9.0], np.float32)
    assert chosen(np.asarray([0], np.int32), logits, repetition_penalty=1.5) == 1  # -3 against -2.5
    assert chosen(np.asarray([0], np.int32), logits, repetition_penalty=1.2) == 0  # -2.4 against -2.5
    assert chosen(np.asarray([1], np.int32), logits, repetition_penalty=0.5) == 1  # -1.25 against -2


def test_repetition_penalty_divides_positive_and_multiplies_negative_scores() -> None:
    logits = np.asarray([4.0, 3.0, -1.0], np.float32)
    assert chosen(np.asarray([0], np.int32), logits, repetition_penalty=1.5) == 1
    assert chosen(np.asarray([0, 1], np.int32), logits, repetition_penalty=1.5) == 0
    assert chosen(np.asarray([0], np.int32), np.asarray([0.5, 0.4], np.float32), repetition_penalty=1.5) == 1


def test_presence_and_frequency_count_from_prompt_ignore_length_on() -> None:
    logits = np.asarray([2.0, 1.5], np.float32)
    context = np.asarray([0, 0, 0], np.int32)
    assert chosen(context, logits, presence_penalty=1.0) == 1
    assert chosen(context, logits, presence_penalty=1.0, prompt_ignore_length=3) == 0
    assert chosen(context, logits, frequency_penalty=0.2, prompt_ignore_length=1) == 0
    assert chosen(context, logits, frequency_penalty=0.2) == 1
    assert chosen(context, logits, frequency_penalty=1.0) == 1


def test_no_end_token_before_the_minimum_length() -> None:
    assert chosen(min_new_tokens=1, end_ids=frozenset({1})) == 2
    beyond = frozenset({1, len(LOGITS)})  # end tokens of a tokenizer that has more tokens than the model
    assert chosen(min_new_tokens=1, end_ids=beyond) == 2
    fields = {"sampling": SamplingParams(), "min_new_tokens": 1, "end_ids": frozenset({1})}
    for request in (make_request([0, 0], **fields), make_request([0, 0, 1], num_resumed_tokens=1, **fields)):
        assert choose_token(request, LOGITS, CONTEXT) == 1


def test_the_targets_logits_are_not_changed() -> None:
    logits, mask = LOGITS.copy(), TokenMask(np.asarray([0b111], np.int32))
    params = SamplingParams(repetition_penalty=2.0, presence_penalty=1.0, bad_words=((1,),))
    choose_token(make_request(sampling=params), logits, CONTEXT, mask)
    assert logits.tolist() == LOGITS.tolist()


def test_embedding_bias_is_added() -> None:
    assert chosen(embedding_bias=np.asarray([0, 0, 5, 0, 0], np.float32)) == 2


def test_all_faults_of_sampling_parameters_are_named_together() -> None:
    params = SamplingParams(temperature=-1, top_k=-2, top_p=0.0, min_p=2, repetition_penalty=0, bad_words=((99,),))
    with pytest.raises(RequestError) as caught:
        check_sampling(params, VOCAB_SIZE)
    for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "bad_words"):
        assert name in str(caught.value)
    check_sampling(SamplingParams(temperature=0.7, top_k=5, top_p=1.0), VOCAB_SIZE)
    check_sampling(SamplingParams(repetition_penalty=float(np.finfo(np.float32).tiny)), VOCAB_SIZE)
    check_sampling(SamplingParams(presence_penalty=LARGEST, frequency_penalty=-LARGEST), VOCAB_SIZE)
    check_sampling(SamplingParams(temperature=LARGEST, repetition_penalty=LARGEST), VOCAB_SIZE)
    largest = np.full(VOCAB_SIZE, LARGEST, np.float32)
    check_sampling(SamplingParams(min_p=1.0, bad_words=((0,),), embedding_bias=largest), VOCAB_SIZE)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"temperature": float("inf")}, "temperature is inf"),
        ({"temperature": 1e39}, "temperature is 1e"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"repetition_penalty": float("inf")}, "repetition_penalty is inf"),
        ({"repetition_penalty": 1e-46}, "repetition_penalty is 1e-46"),
        ({"presence_penalty": -1e39}, "presence_penalty is -1e"),
        ({"frequency_penalty": float("nan")}, "frequency_penalty is nan"),
        ({"min_p": float("nan")}, "min_p is nan"),
        ({"seed": 1 << 64}, "seed is 18446744073709551616"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"embedding_bias": np.asarray([LARGEST, np.nan] + [0] * 22, np.float32)}, "embedding_bias of token 1 is nan"),
        ({"embedding_bias": np.asarray([0, -np.inf] + [0] * 22, np.float32)}, "embedding_bias of token 1 is -inf"),
        ({"embedding_bias": np.full(24, 1e300)}, "embedding_bias of token 0 is 1e"),
        ({"embedding_bias": np.zeros(23, np.float32)}, r"embedding_bias has shape \(23,\)"),
        ({"bad_words": ((1,), ())}, "bad_words hold a word without tokens"),
        ({"bad_words": ((1, VOCAB_SIZE),)}, "bad_words hold a token outside the vocabulary 0 .. 23"),
    ],
)
def test_values_that_would_make_nan_of_logits_are_refused(fields: dict[str, object], sentence: str) -> None:
    with pytest.raises(RequestError, match=sentence):
        check_sampling(SamplingParams(**fields), VOCAB_SIZE)  # type: ignore[arg-type]


def any_finite(least: float = -3.4e38) -> st.SearchStrategy[float]:
    return st.floats(least, 3.4e38) | st.sampled_from([least, 3.4e38, 1.0])


@given(
    temperature=any_finite(0.0) | st.just(1e-320),
    repetition_penalty=any_finite(1.2e-38),
    presence_penalty=any_finite(),
    frequency_penalty=any_finite(),
    bias=st.lists(any_finite(), min_size=5, max_size=5),
    seed=st.integers(0, 100),
)
def test_whatever_is_allowed_lets_no_banned_token_through(bias: list[float], **fields: float) -> None:
    params = SamplingParams(**fields, bad_words=((1,), (3,)), embedding_bias=np.asarray(bias, np.float32))  # type: ignore[arg-type]
    check_sampling(params, len(LOGITS))
    request = make_request(CONTEXT.tolist(), sampling=params, min_new_tokens=1, end_ids=frozenset({2}))
    with np.errstate(all="raise", under="ignore"):
        assert choose_token(request, LOGITS, CONTEXT) in {0, 4}


@given(st.integers(0, 2**64 - 1), st.floats(0.1, 2.0), st.integers(0, 5), st.floats(0.1, 1.0))
def test_the_same_seed_gives_the_same_token(seed: int, temperature: float, top_k: int, top_p: float) -> None:
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    logits = table_logits([1, 2, 3])
    request = make_request(sampling=params)
    assert choose_token(request, logits, CONTEXT) == choose_token(request, logits.copy(), CONTEXT.copy())


def test_a_penalty_of_two_is_applied_like_any_other() -> None:
    assert chosen(context=np.asarray([1, 1], np.int32), repetition_penalty=2.0) == 2


def test_a_token_exactly_at_min_p_stays() -> None:
    logits = np.asarray([0.0, 0.0, -np.inf], np.float32)
    assert {chosen(logits=logits, temperature=1.0, min_p=1.0, seed=seed) for seed in range(40)} == {0, 1}


def test_the_nucleus_ends_where_its_share_is_reached() -> None:
    logits = np.zeros(2, np.float32)
    assert {chosen(logits=logits, temperature=1.0, top_p=0.5, seed=seed) for seed in range(40)} == {0}


def chosen_by_definition(logits: np.ndarray, params: SamplingParams) -> int:
    """top-k, top-p and min-p over the whole vocabulary, sorted. With a top-k of 1 the first of the best tokens."""
    if params.top_k == 1:
        return int(logits.argmax())
    scores = (logits - logits.max()) / np.float32(params.temperature)
    if 0 < params.top_k < len(scores):
        scores[scores < np.sort(scores)[-params.top_k]] = -np.inf
    weights = np.exp(scores, dtype=np.float64)
    order = np.argsort(-scores, kind="stable")
    before = np.cumsum(weights[order]) - weights[order]
    if params.top_p < 1:
        scores[order[before >= params.top_p * weights.sum()]] = -np.inf
    scores[weights < params.min_p] = -np.inf
    return int((scores + noise(params.seed, len(CONTEXT), len(scores))).argmax())


@given(
    logits=st.builds(
        # Rounded, so that some are equal.
        lambda number, spread: np.random.default_rng(number).normal(0, spread, 500).round(1).astype(np.float32),
        st.integers(0, 1000),
        st.floats(0.5, 20),
    ),
    params=st.builds(
        SamplingParams,
        temperature=st.floats(0.05, 5),
        top_k=st.sampled_from([0, 1, 2, 50, 400]),
        top_p=st.floats(0.01, 1) | st.sampled_from([0.9, 0.999999, 1 - 2.0**-53]),
        min_p=st.sampled_from([0.0, 0.05, 0.5]),
        seed=st.integers(0, 2**64 - 1),
    ),
)
@example(
    # Two tokens have the best logit.
    logits=np.random.default_rng(2).normal(0, 1.0, 500).round(1).astype(np.float32),
    params=SamplingParams(temperature=1.0, top_k=1, seed=0),
)
def test_tokens_are_chosen_as_if_all_were_sorted(logits: np.ndarray, params: SamplingParams) -> None:
    request = make_request(CONTEXT.tolist(), sampling=params)
    assert choose_token(request, logits, CONTEXT) == chosen_by_definition(logits, params)
