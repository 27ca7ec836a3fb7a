"""`input_ids` instead of a text, `output_ids`, and outputs that continue an interrupted one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.triton_models.bls import TextResponse
from tests.unit.triton_models.fakes import TableTarget, text_tensors
from tests.unit.triton_models.test_bls import STRATEGIES, expected_ids, letters, make_bls, run_in

PROMPT = "ccddccddcc"
PROMPT_IDS = [ord(letter) - ord("a") for letter in PROMPT]


def token_tensors(ids: list[int], max_tokens: int, **more: object) -> dict[str, Any]:
    return text_tensors("", max_tokens, input_ids=ids, **more)


def ids_of(answers: list[TextResponse]) -> list[int]:
    return [token for answer in answers for token in answer.tensors["output_ids"].reshape(-1).tolist()]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("stream", [False, True])
def test_tokens_are_those_of_the_same_prompt_as_text(strategy, stream):
    answers = run_in(make_bls(), token_tensors(PROMPT_IDS, 40, strategy=strategy, stream=stream))

    assert ids_of(answers) == expected_ids(PROMPT, 40)
    assert all("text_output" not in answer.tensors for answer in answers)
    assert [answer.last for answer in answers] == [False] * (len(answers) - 1) + [True]
    assert "finish_reason" in answers[-1].tensors
    assert len(answers) == 1 or stream
    assert all(answer.tensors["output_ids"].dtype == np.int32 for answer in answers)


def test_text_requests_return_no_tokens_beside_the_text():
    answers = run_in(make_bls(), text_tensors(PROMPT, 10, stream=True))

    assert all("output_ids" not in answer.tensors for answer in answers)


def test_stop_words_end_tokens_too():
    whole = expected_ids(PROMPT, 40)
    word = letters(whole)[10:13]

    answers = run_in(make_bls(), token_tensors(PROMPT_IDS, 40, stop_words=[word], stream=True))

    assert ids_of(answers) == whole[: letters(whole).index(word)]
    assert answers[-1].tensors["finish_reason"].tolist() == [b"stop_words"]


@settings(max_examples=40)
@given(
    cut=st.integers(0, 29),
    strategy=st.sampled_from(STRATEGIES),
    options=st.sampled_from(
        (
            {},
            {"temperature": 1.25, "seed": 7},
            {"min_tokens": 25},
            {"temperature": 1.5, "seed": 3, "presence_penalty": 2.0, "prompt_ignore_length": len(PROMPT_IDS)},
            {"frequency_penalty": 1.0, "repetition_penalty": 1.5, "min_tokens": 30},
            {"end_id": -1, "temperature": 0.8, "seed": 9, "top_p": 0.75},
        )
    ),
)
def test_an_output_that_goes_on_elsewhere_is_the_undisturbed_one(cut, strategy, options):
    whole = ids_of(run_in(make_bls(), token_tensors(PROMPT_IDS, 30, strategy="none", **options)))
    cut = min(cut, len(whole) - 1)

    rest = run_in(
        make_bls(),
        token_tensors(
            PROMPT_IDS + whole[:cut],
            30,
            strategy=strategy,
            num_resumed_tokens=cut,
            return_num_input_tokens=True,
            **options,
        ),
    )

    assert ids_of(rest) == whole[cut:]
    assert rest[-1].tensors["num_input_tokens"].item() == len(PROMPT_IDS)


def test_the_engine_gets_no_more_than_the_remaining_tokens():
    target = TableTarget()
    whole = expected_ids(PROMPT, 30, frozenset())

    run_in(make_bls(target), token_tensors(PROMPT_IDS + whole[:28], 30, num_resumed_tokens=28, end_id=-1))

    for call in target.calls:
        assert call["input_lengths"].item() + call["request_output_len"].item() <= len(PROMPT_IDS) + 30
