"""Requests that models with one response forward."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.errors import RequestError
from pipeline.triton_models.single_response import WORKING_MODELS, WorkingModel, forwarded
from pipeline.triton_models.tensors import Array

MODELS = list(WORKING_MODELS.values())


def row(value: object) -> Array:
    return np.asarray([[value]])


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
@pytest.mark.parametrize(
    ("streams", "sent", "excluded"),
    [
        (None, None, False),
        (False, None, False),
        (False, True, True),
        (False, False, False),
        (True, None, True),
        (True, False, True),
    ],
)
def test_one_response_holds_the_prompt_unless_it_is_excluded_or_streamed(
    model: WorkingModel, streams: bool | None, sent: bool | None, excluded: bool
) -> None:
    asked = {"seed": row(5)}
    asked |= {} if streams is None else {model.stream: row(streams)}
    asked |= {} if sent is None else {"exclude_input_in_output": row(sent)}

    assert {name: value.tolist() for name, value in forwarded(asked, model).items()} == {
        "seed": [[5]],
        "exclude_input_in_output": [[excluded]],
    }


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_several_rows_are_refused(model: WorkingModel) -> None:
    with pytest.raises(RequestError, match="seed holds a batch of 2 requests; send each as a request of its own"):
        forwarded({"seed": np.ones((2, 1))}, model)
