"""Valid and refused values of input tensors."""

from __future__ import annotations

import json

import pytest

from pipeline.gateway.generate_body import check_tensor_types, checked_generate, types_of
from pipeline.gateway.refusal import Refusal
from pipeline.gateway.tenants import Tenant

DATATYPES = {"text": "BYTES", "count": "INT32", "seed": "UINT64", "heat": "FP32", "flag": "BOOL"}
TYPES = types_of({"inputs": [{"name": n, "datatype": d, "shape": [-1, 1]} for n, d in DATATYPES.items()]})


@pytest.mark.parametrize(
    "value",
    [
        {"text": "a", "count": -(1 << 31), "seed": (1 << 64) - 1, "heat": 1, "flag": True},
        {"text": [["a"], []], "count": [[(1 << 31) - 1]], "heat": 0.5},
        {"unknown": {"to": ["us"]}, "id": 3},
    ],
)
def test_values_that_fit_are_taken(value):
    check_tensor_types(value, TYPES)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({"count": 1 << 31}, r"count is 2147483648; it must be a whole number in -2147483648 \.\. 2147483647"),
        ({"count": 8.5}, "count is 8.5; it must be a whole number"),
        ({"count": True}, "count is true; it must be a whole number"),
        ({"count": None}, "count is null; it must be a whole number"),
        ({"seed": -1}, "seed is -1; it must be a whole number in 0"),
        ({"text": 3}, "text is 3; it must be a string"),
        ({"text": ["a", 3]}, "text is 3; it must be a string"),
        ({"heat": "hot"}, 'heat is "hot"; it must be a number'),
        ({"heat": True}, "heat is true; it must be a number"),
        ({"flag": 1}, "flag is 1; it must be true or false"),
        ({"flag": "x" * 1000}, r'flag is "x{59}\.\.\.; it must be true or false'),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_what_would_be_right(value, sentence):
    with pytest.raises(Refusal, match=sentence):
        check_tensor_types(value, TYPES)


def checked(parameters: object) -> tuple[dict[str, object], int | None]:
    """What is sent, without its id and its namespace, and the limit of the output."""
    types = TYPES | {"max_tokens": "INT32", "namespace": "BYTES", "stop": "BOOL"}
    body = json.dumps({"text": "a", "parameters": parameters}).encode()
    found = checked_generate(body, Tenant("a", "a/", 1, None), types)
    sent = json.loads(found.body)
    return {name: value for name, value in sent.items() if name not in ("id", "namespace")}, found.max_tokens


def test_inputs_among_the_parameters_are_checked_as_the_others_are():
    assert checked({"max_tokens": 3, "odd": 1}) == ({"text": "a", "max_tokens": 3, "parameters": {"odd": 1}}, 3)
    assert checked(3) == ({"text": "a", "parameters": 3}, None)
    for parameters, sentence in (
        ({"seed": -1}, "seed is -1"),
        ({"text": "b"}, "text occurs in the request and in its"),
    ):
        with pytest.raises(Refusal, match=sentence):
            checked(parameters)
