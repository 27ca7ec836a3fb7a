"""Log probabilities of tokens and of the best alternatives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.decoding.log_probs import (
    LogitOptions,
    PromptLogits,
    check_logit_options,
    log_softmax,
    token_log_prob,
    top_ids,
)
from pipeline.errors import RequestError

rows = st.lists(st.sampled_from([-3.0, -1.0, 0.0, 0.5, 2.0, 30.0]), min_size=1, max_size=12)


@given(rows)
def test_probabilities_sum_to_one_and_keep_the_order(values: list[float]) -> None:
    logits = np.asarray(values, np.float32)
    log_probs = log_softmax(logits)
    assert np.exp(log_probs.astype(np.float64)).sum() == pytest.approx(1.0, rel=1e-5)
    assert np.array_equal(np.argsort(-log_probs, kind="stable"), np.argsort(-logits, kind="stable"))


@given(rows, st.integers(0, 14))
def test_the_best_come_first_and_of_equal_ones_the_smaller_id(values: list[float], count: int) -> None:
    array = np.asarray(values, np.float32)
    assert top_ids(array, count).tolist() == np.argsort(-array, kind="stable")[:count].tolist()


def test_the_first_prompt_token_has_none() -> None:
    logits = [np.asarray([0.0, 1.0, 2.0], np.float32)] * 3
    prompt = PromptLogits([], [])
    for part in (logits[:1], logits[1:]):
        prompt.add(part, np.asarray([0, 2, 1], np.int32), LogitOptions(log_probs=True, num_top=1, prompt=True))
    found = prompt.log_probs
    assert [token.value for token in found] == [log_softmax(logits[0])[2], log_softmax(logits[0])[1]]
    assert [token.top_ids for token in found] == [[2], [2]]


@pytest.mark.parametrize(
    "wanted", [LogitOptions(True, num_top=65), LogitOptions(True, num_top=-1), LogitOptions(num_top=1)]
)
def test_a_number_of_alternatives_that_makes_no_sense_is_refused(wanted: LogitOptions) -> None:
    with pytest.raises(RequestError, match="num_top_logprobs"):
        check_logit_options(wanted)


@pytest.mark.parametrize("wanted", [LogitOptions(), LogitOptions(True), LogitOptions(True, num_top=64)])
def test_other_numbers_of_alternatives_are_permitted(wanted: LogitOptions) -> None:
    check_logit_options(wanted)


@pytest.mark.parametrize(
    ("wanted", "of_output", "of_prompt"),
    [
        (LogitOptions(), False, False),
        (LogitOptions(log_probs=True), True, False),
        (LogitOptions(prompt=True), False, False),
        (LogitOptions(log_probs=True, prompt=True), True, True),
        (LogitOptions(generation_logits=True), True, False),
        (LogitOptions(context_logits=True), False, True),
    ],
)
def test_parts_of_the_logits_are_returned_where_they_are_asked_for(
    wanted: LogitOptions, of_output: bool, of_prompt: bool
) -> None:
    assert (wanted.of_output, wanted.of_prompt) == (of_output, of_prompt)


def test_a_row_that_is_returned_is_a_copy() -> None:
    logits = np.zeros(3, np.float32)
    row = token_log_prob(logits, 0, 0, keep_row=True).row
    logits[0] = 9
    assert row is not None
    assert row.tolist() == [0, 0, 0]
