"""Choices and log probabilities of the OpenAI API, with OpenAI's client."""

from __future__ import annotations

import itertools

import pytest

from tests.integration.openai_requests import MODEL, chat

pytestmark = [pytest.mark.triton, pytest.mark.slow]


def test_choice_i_is_a_single_request_with_seed_plus_i(client):
    sampled = {"temperature": 1.0, "logprobs": True}
    single = [chat(client, seed=11 + number, **sampled) for number in range(3)]

    answer = chat(client, n=3, seed=11, **sampled)

    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    for choice, alone in zip(answer.choices, single, strict=True):
        assert choice.model_dump() | {"index": 0} == alone.choices[0].model_dump()
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == single[0].usage.prompt_tokens
    assert answer.usage.completion_tokens == sum(alone.usage.completion_tokens for alone in single)
    assert len({choice.message.content for choice in chat(client, n=3, temperature=1.0).choices}) == 3


def test_streamed_choices_carry_their_index_and_one_usage(client):
    asked = {"temperature": 1.0, "n": 3, "seed": 11}
    whole = chat(client, **asked)

    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}, **asked))

    texts, reasons = ["", "", ""], [None, None, None]
    for chunk in chunks[:-1]:
        (choice,) = chunk.choices
        texts[choice.index] += choice.delta.content or ""
        reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    assert texts == [choice.message.content for choice in whole.choices]
    assert reasons == [choice.finish_reason for choice in whole.choices]
    assert len({chunk.id for chunk in chunks}) == 1
    assert (chunks[-1].choices, chunks[-1].usage) == ([], whole.usage)


def test_completions_have_choices_too(client):
    asked = {"model": MODEL, "prompt": "the rat", "max_tokens": 8, "temperature": 1.0}
    single = [client.completions.create(seed=3 + number, **asked).choices[0].text for number in range(2)]

    answer = client.completions.create(seed=3, n=2, **asked)
    streamed = ["", ""]
    for chunk in client.completions.create(seed=3, n=2, stream=True, **asked):
        for choice in chunk.choices:
            streamed[choice.index] += choice.text

    assert [choice.text for choice in answer.choices] == single
    assert streamed == single


def test_log_probabilities_come_with_alternatives(client):
    answer = chat(client, logprobs=True, top_logprobs=3, max_tokens=8)

    places = answer.choices[0].logprobs.content  # type: ignore[union-attr]
    assert places is not None
    assert len(places) == 8
    for place in places:  # greedy: the most probable token is the one that was taken
        assert place.logprob == pytest.approx(max(other.logprob for other in place.top_logprobs))
        assert place.logprob < 0


@pytest.mark.parametrize("num_asked", [0, 1, 2])
def test_log_probabilities_come_with_as_many_alternatives_as_were_asked_for(client, num_asked):
    answer = chat(client, logprobs=True, top_logprobs=num_asked, max_tokens=3, temperature=2.0, seed=1)

    places = answer.choices[0].logprobs.content or []  # type: ignore[union-attr]
    assert [len(place.top_logprobs) for place in places] == [num_asked] * 3


@pytest.mark.parametrize("num_choices", [1, 2])
def test_completions_have_alternatives_by_token(client, num_choices):
    answer = client.completions.create(model=MODEL, prompt="the rat", max_tokens=4, logprobs=2, n=num_choices, seed=3)

    assert len(answer.choices) == num_choices
    for choice in answer.choices:
        alternatives = choice.logprobs.top_logprobs
        assert len(alternatives) == 4
        places = [*choice.logprobs.text_offset, None]
        parts = [choice.text[begin:end] for begin, end in itertools.pairwise(places)]
        assert parts == choice.logprobs.tokens
        # The chosen token is one more where it is not among them. Parts of a character share one text.
        assert all(0 < len(place) <= 3 and max(place.values()) <= 0 for place in alternatives), alternatives


@pytest.mark.parametrize("strategy", ["none", "hybrid"])
def test_each_token_but_the_end_token_has_a_log_probability(client, strategy):
    """Alone in a chunk, the end token removed those of the others; with others it had an entry of its own."""
    ended = 0
    for seed in range(8):
        sampled = {"temperature": 1, "seed": seed, "logit_bias": {"1": 4}, "extra_body": {"strategy": strategy}}
        answer = chat(client, logprobs=True, **sampled)
        choice = answer.choices[0]
        is_ended = choice.finish_reason == "stop"
        places = (choice.logprobs.content if choice.logprobs else None) or []
        assert len(places) == answer.usage.completion_tokens - is_ended
        completion = client.completions.create(model=MODEL, prompt="the rat", max_tokens=24, logprobs=0, **sampled)
        found = completion.choices[0].logprobs
        tokens = found.tokens if found else []
        if found:
            assert found.top_logprobs == [
                {token: value} for token, value in zip(tokens, found.token_logprobs, strict=True)
            ]
        assert len(tokens) == completion.usage.completion_tokens - (completion.choices[0].finish_reason == "stop")
        ended += is_ended and len(places) > 1
    assert ended
