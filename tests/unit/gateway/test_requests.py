"""The gateway reads requests and sets the tenant's namespace: by HTTP and gRPC."""

from __future__ import annotations

import json
from contextlib import suppress

import numpy as np
import pytest
import tritonclient.http as http_client
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from pipeline.config.schema import GatewayConfig
from pipeline.gateway.bodies import MAX_DEPTH
from pipeline.gateway.generate_body import checked_generate
from pipeline.gateway.grpc_message import check_request
from pipeline.gateway.infer_body import checked_infer
from pipeline.gateway.refusal import Refusal
from pipeline.gateway.tenants import Tenants
from pipeline.repository.names import FRONT_MODEL
from pipeline.request_ids import chosen_id
from tests.unit.gateway.gateways import api_key

TYPES = {"namespace": "BYTES", "max_tokens": "INT32"}


def tensors(namespace, binary):
    """Inputs as tritonclient sends them over HTTP."""
    values = {"text_input": np.asarray([["a"]], np.object_), "max_tokens": np.asarray([[7]], np.int32)}
    values["num_return_sequences"] = np.asarray([[3]], np.int32)
    if namespace is not None:
        values["namespace"] = np.asarray([[namespace]], np.object_)
    found = []
    for name, value in values.items():
        tensor = http_client.InferInput(name, [1, 1], "INT32" if value.dtype == np.int32 else "BYTES")
        tensor.set_data_from_numpy(value, binary_data=binary)
        found.append(tensor)
    return found


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize(
    ("namespace", "expected"), [(None, "alice/"), ("mine", "alice/mine"), ("bob/x", "alice/bob/x")]
)
def test_infer_gets_the_tenants_namespace_in_place_of_the_clients(alice, binary, namespace, expected):
    body, length = http_client.InferenceServerClient.generate_request_body(tensors(namespace, binary))

    checked = checked_infer(body, None if length is None else str(length), alice, TYPES)

    header = json.loads(checked.body[: checked.header_length])
    found = {tensor["name"]: tensor for tensor in header["inputs"]}
    assert list(found) == ["text_input", "max_tokens", "num_return_sequences", "namespace"]
    assert found["namespace"]["data"] == [expected]
    assert (checked.max_tokens, checked.num_choices) == (7, 3)
    if binary:
        assert checked.body[checked.header_length :] == b"\1\0\0\0a\7\0\0\0\3\0\0\0"


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize(("namespace", "expected"), [(None, b"alice/"), ("mine", b"alice/mine")])
def test_a_grpc_request_gets_the_tenants_namespace(alice, raw, namespace, expected):
    request = pb.ModelInferRequest(model_name=FRONT_MODEL)
    numbers = {"max_tokens": 7, "num_return_sequences": 3}
    for name, kind, value in [("namespace", "BYTES", namespace), *((name, "INT32", n) for name, n in numbers.items())]:
        if value is None:
            continue
        tensor = request.inputs.add(name=name, datatype=kind, shape=[1, 1])
        data = value.to_bytes(4, "little") if name in numbers else value.encode()
        if raw:
            prefix = b"" if name in numbers else len(data).to_bytes(4, "little")
            request.raw_input_contents.append(prefix + data)
        elif name in numbers:
            tensor.contents.int_contents.append(value)
        else:
            tensor.contents.bytes_contents.append(data)

    assert check_request(request, alice, True) == (7, 3, expected.decode())

    place = [tensor.name for tensor in request.inputs].index("namespace")
    assert [tensor.name for tensor in request.inputs].count("namespace") == 1
    if raw:
        assert len(request.raw_input_contents) == len(request.inputs)
        assert request.raw_input_contents[place] == len(expected).to_bytes(4, "little") + expected
    else:
        assert list(request.inputs[place].contents.bytes_contents) == [expected]


def test_generate_gets_the_tenants_namespace(alice):
    for sent, expected in [({}, "alice/"), ({"namespace": "x"}, "alice/x"), ({"namespace": ["x"]}, "alice/x")]:
        checked = checked_generate(json.dumps({"max_tokens": 3} | sent).encode(), alice, TYPES)
        assert json.loads(checked.body)["namespace"] == expected
        assert (checked.max_tokens, checked.num_choices) == (3, 1)
    with pytest.raises(Refusal, match="namespace is 3; it must be a string"):
        checked_generate(b'{"namespace": 3}', alice, TYPES)


def test_a_model_without_namespaces_gets_none(alice):
    assert checked_generate(b'{"a":1}', alice, {}).body == b'{"a":1}'


SHARED = {"name": "x", "parameters": {"shared_memory_region": "la1", "shared_memory_byte_size": 4}}
CLASSIFIED = {"name": "x", "parameters": {"classification": 2}}


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({}, "inputs must be a list"),
        ({"inputs": 3}, "inputs must be a list"),
        ({"inputs": [3]}, "inputs must be a list"),
        ({"inputs": [{}]}, "needs a name"),
        ({"inputs": [{"name": 3}]}, "needs a name"),
        ({"inputs": [{"name": "x", "parameters": 3}]}, "must be an object"),
        # Triton itself would take the value for 4.
        (
            {"inputs": [{"name": "max_tokens", "data": [4 - (1 << 32)]}]},
            "max_tokens is -4294967292; it must be a whole",
        ),
        ({"inputs": [SHARED]}, "shared memory"),
        ({"inputs": [], "outputs": [SHARED]}, "shared memory"),
        ({"inputs": [], "outputs": [CLASSIFIED]}, "cannot be classified"),
        ({"inputs": [{"name": "x", "shape": [2, 1], "data": [1, 2]}]}, "x has 2 rows; send each row as a request"),
        ({"inputs": [{"name": "x", "parameters": {"binary_data_size": 9}}]}, "0 bytes are left"),
        ({"inputs": [{"name": "x", "parameters": {"binary_data_size": -1}}]}, "0 bytes are left"),
        ({"inputs": [{"name": "x", "parameters": {"binary_data_size": True}}]}, "0 bytes are left"),
    ],
)
def test_a_bad_infer_request_is_refused_with_a_sentence(alice, value, sentence):
    with pytest.raises(Refusal, match=sentence):
        checked_infer(json.dumps(value).encode(), None, alice, TYPES)


@pytest.mark.parametrize("length", ["-1", "x", "999", "1" * 5000, "0" * 20 + "1" * 5000, "٣"])
def test_a_wrong_header_length_is_refused(alice, length):
    with pytest.raises(Refusal):
        checked_infer(b'{"inputs": []}', length, alice, TYPES)


def test_shared_memory_classification_and_rows_over_grpc_are_refused(alice):
    shared, classified, rows = (pb.ModelInferRequest(model_name=FRONT_MODEL) for _ in range(3))
    shared.inputs.add(name="x").parameters["shared_memory_region"].string_param = "la1"
    classified.outputs.add(name="x").parameters["classification"].int64_param = 2
    rows.inputs.add(name="x", shape=[2, 1])
    for request, sentence in ((shared, "shared memory"), (classified, "cannot be classified"), (rows, "x has 2 rows")):
        with pytest.raises(Refusal, match=sentence):
            check_request(request, alice, True)


@pytest.mark.parametrize("models_of_ours", [True, False])
@pytest.mark.parametrize("shape", [[1, 1 << 62], [1, -(1 << 62)], [1 << 62, 0], [1, 1 << 31, 1 << 31], [-1, 1]])
def test_a_shape_that_no_data_has_is_refused(alice, shape, models_of_ours):
    """Its byte size overflows to that of no data in a tritonserver, whose process of the model then dies."""
    request = pb.ModelInferRequest(model_name=FRONT_MODEL)
    request.inputs.add(name="input_ids", shape=shape)
    value = {"inputs": [{"name": "input_ids", "shape": shape, "parameters": {"binary_data_size": 0}}]}

    with pytest.raises(Refusal, match="which no data has"):
        check_request(request, alice, models_of_ours)
    with pytest.raises(Refusal, match="which no data has"):
        checked_infer(json.dumps(value).encode(), None, alice, TYPES if models_of_ours else {})


@pytest.mark.parametrize("shape", [[1, 1 << 31], [1, 0], [], None, "x", [0.5, "x"], [True]])
def test_other_shapes_are_left_to_triton(alice, shape):
    checked_infer(json.dumps({"inputs": [{"name": "x", "shape": shape, "data": []}]}).encode(), None, alice, TYPES)


@pytest.mark.parametrize("field", ["id", "input", "output"])
def test_what_triton_would_cut_off_is_refused(alice, field):
    """Triton ends a text at U+0000: an id then lacks the suffix by which the gateway stops the request."""
    odd = "a\0b"
    request = pb.ModelInferRequest(model_name=FRONT_MODEL, id=odd if field == "id" else "")
    value = {"id": request.id, "inputs": [{"name": odd}] if field == "input" else []}
    if field == "input":
        request.inputs.add(name=odd)
    elif field == "output":
        request.outputs.add(name=odd)
        value["outputs"] = [{"name": odd}]

    with pytest.raises(Refusal, match=r"U\+0000"):
        check_request(request, alice, True)
    with pytest.raises(Refusal, match=r"U\+0000"):
        checked_infer(json.dumps(value).encode(), None, alice, TYPES)
    if field == "id":
        with pytest.raises(Refusal, match=r"U\+0000"):
            checked_generate(json.dumps({"id": odd}).encode(), alice, TYPES)


def test_raw_contents_that_do_not_fit_the_inputs_are_refused(alice):
    request = pb.ModelInferRequest(model_name=FRONT_MODEL, raw_input_contents=[b"a", b"b"])
    request.inputs.add(name="x")

    with pytest.raises(Refusal, match="1 inputs, and raw contents of 2; send the raw contents of every input"):
        check_request(request, alice, True)


def test_an_input_that_occurs_twice_is_named(alice):
    request = pb.ModelInferRequest(model_name=FRONT_MODEL)
    for name in ("x", "y", "x"):
        request.inputs.add(name=name)
    value = {"inputs": [{"name": name, "shape": [1], "datatype": "INT32", "data": [1]} for name in ("x", "y", "x")]}

    with pytest.raises(Refusal, match="the input 'x' occurs twice; send it once"):
        check_request(request, alice, True)
    with pytest.raises(Refusal, match="the input 'x' occurs 2 times; send it once"):
        checked_infer(json.dumps(value).encode(), None, alice, TYPES)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["name", "inputs", "outputs", "parameters", "data", "binary_data_size"]), inner
        )
    ),
    max_leaves=20,
)


@given(JSON, st.binary(max_size=20), st.none() | st.integers(-5, 80).map(str))
def test_any_infer_body_is_passed_on_with_one_namespace_or_refused(value, tail, length):
    tenant = Tenants([api_key("alice")], GatewayConfig()).of_key("alice")
    with suppress(Refusal):
        checked = checked_infer(json.dumps(value).encode() + tail, length, tenant, TYPES)
        names = [tensor["name"] for tensor in json.loads(checked.body[: checked.header_length])["inputs"]]
        assert names.count("namespace") == 1


def test_what_a_client_sends_deep_inside_a_tensor_is_bounded(alice):
    data = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    with pytest.raises(Refusal, match="levels deep"):
        checked_infer(f'{{"inputs": [{{"name": "x", "data": {data}}}]}}'.encode(), None, alice, TYPES)


GRPC_TENSORS = st.builds(
    pb.ModelInferRequest.InferInputTensor,
    name=st.sampled_from(["namespace", "max_tokens", "x"]),
    shape=st.lists(st.integers(-5, 5), max_size=3),
)
GRPC_BLOCKS = st.binary(max_size=12) | st.binary(max_size=5).map(lambda data: len(data).to_bytes(4, "little") + data)


@given(
    st.lists(st.tuples(GRPC_TENSORS, GRPC_BLOCKS), max_size=4).map(
        lambda pairs: pb.ModelInferRequest(
            model_name=FRONT_MODEL, inputs=[p[0] for p in pairs], raw_input_contents=[p[1] for p in pairs]
        )
    )
)
def test_any_grpc_request_is_given_one_namespace_or_refused(request):
    tenant = Tenants([api_key("alice")], GatewayConfig()).of_key("alice")
    with suppress(Refusal):
        check_request(request, tenant, True)
        assert [tensor.name for tensor in request.inputs].count("namespace") == 1
        assert pb.ModelInferRequest.FromString(request.SerializeToString()) == request


def test_request_ids_contain_the_tenant_so_that_none_stops_anothers(alice):
    request = pb.ModelInferRequest(model_name=FRONT_MODEL, id="1")
    check_request(request, alice, True)

    assert request.id == "alice/1"
    for body in (
        checked_generate(b'{"id": "1"}', alice, TYPES).body,
        checked_infer(b'{"id": "1", "inputs": []}', None, alice, TYPES).body,
    ):
        assert chosen_id(json.loads(body)["id"]) == "alice/1"
    assert json.loads(checked_generate(b'{"id": "1"}', alice, {}).body)["id"] == "alice/1"  # not one of our models
    assert "id" not in json.loads(checked_generate(b"{}", alice, {}).body)
    with pytest.raises(Refusal, match="id must be a string"):
        checked_generate(b'{"id": 3}', alice, TYPES)
