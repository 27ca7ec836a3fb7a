"""Requests of all kinds to a real server through its gateway: no crash, no 5xx, no internal text; it serves on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress

import httpx
import numpy as np
import pytest
import schemathesis
import tritonclient.grpc as triton
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, status_code_conformance
from tritonclient.grpc import service_pb2 as pb
from tritonclient.utils import InferenceServerException

from pipeline.gateway.openapi_page import PAGE
from pipeline.repository.names import FRONT_MODEL
from pipeline.server.processes import model_processes
from pipeline.server.server import RunningServer
from pipeline.triton_grpc import infer_request
from tests.integration.servers import PROMPT, ask
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.triton, pytest.mark.slow]
QUICK = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance]


@pytest.fixture(scope="module")
def api(server: RunningServer) -> schemathesis.schemas.BaseSchema:
    paths = {path: item for path, item in PAGE["paths"].items() if path.startswith("/v2")}
    schema = schemathesis.openapi.from_dict(PAGE | {"paths": paths})
    schema.config.update(base_url=server.state.http_url)
    return schema


@pytest.fixture(autouse=True)
def unharmed(server: RunningServer) -> Iterator[None]:
    """Whatever a test does, the same processes go on and bring the same text."""
    before, text = model_processes(server.state.server_id), ask(server, strategy="none").text
    yield
    assert model_processes(server.state.server_id) == before
    assert ask(server, strategy="none").text == text


def is_soon(header: object) -> bool:
    """Whether a deadline in seconds may pass before the model answers."""
    try:
        return 0 < float(str(header)) < 60
    except ValueError:
        return False


def test_requests_made_from_the_openapi_page(api: schemathesis.schemas.BaseSchema) -> None:
    operations = [found.ok() for found in api.get_all_operations()]
    assert len(operations) > 5
    for operation in operations:

        @QUICK
        @given(case=operation.as_strategy())
        def is_answered(case: schemathesis.Case) -> None:
            if isinstance(case.body, dict) and type(case.body.get("max_tokens")) is int:
                case.body["max_tokens"] = min(case.body["max_tokens"], 8)  # the model writes no faster for being fuzzed
            if case.headers and is_soon(case.headers.get("x-request-timeout")):
                case.headers["x-request-timeout"] = "60"  # a deadline that is missed is a 504, rightly
            case.call_and_validate(checks=CHECKS, timeout=PATIENCE_S)

        is_answered()


NAMES = st.sampled_from(
    [
        "text_input",
        "max_tokens",
        "stream",
        "seed",
        "namespace",
        "messages",
        "stop_words",
        "id",
        "parameters",
        "input_ids",
    ]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=8,
)


@QUICK
@given(body=st.dictionaries(NAMES, VALUES, max_size=5), verb=st.sampled_from(["generate", "generate_stream", "infer"]))
def test_bodies_of_any_json(server: RunningServer, body: dict[str, object], verb: str) -> None:
    url = f"{server.state.http_url}/v2/models/{FRONT_MODEL}/{verb}"
    if type(body.get("max_tokens")) is int:
        body["max_tokens"] = min(int(str(body["max_tokens"])), 8)
    answer = httpx.post(url, content=json.dumps(body).encode(errors="surrogatepass"), timeout=PATIENCE_S)

    assert answer.status_code in (200, 400)
    assert server.state.server_id not in answer.text


@QUICK
@given(content=st.binary(max_size=300), length=st.none() | st.integers(-1, 400).map(str))
def test_bodies_of_any_bytes(server: RunningServer, content: bytes, length: str | None) -> None:
    headers = {} if length is None else {"inference-header-content-length": length}
    url = f"{server.state.http_url}/v2/models/{FRONT_MODEL}/infer"

    assert httpx.post(url, content=content, headers=headers, timeout=PATIENCE_S).status_code == 400


TENSORS = st.builds(
    pb.ModelInferRequest.InferInputTensor,
    name=st.sampled_from(["text_input", "max_tokens", "stream", "namespace", "input_ids", "temperature", "x"]),
    datatype=st.sampled_from(["BYTES", "INT32", "FP32", "BOOL", "UINT64", "", "X"]),
    shape=st.lists(st.integers(-2, 4) | st.just(1 << 62), max_size=4),
)
BLOCKS = st.binary(max_size=40) | st.binary(max_size=8).map(lambda data: len(data).to_bytes(4, "little") + data)


@QUICK
@given(pairs=st.lists(st.tuples(TENSORS, BLOCKS), max_size=5), is_raw=st.booleans())
def test_tensors_of_any_kind_by_grpc(server: RunningServer, pairs: list[tuple[object, bytes]], is_raw: bool) -> None:
    request = pb.ModelInferRequest(model_name=FRONT_MODEL, id="fuzz")
    request.inputs.extend(tensor for tensor, _ in pairs)
    if is_raw:
        request.raw_input_contents.extend(block for _, block in pairs)
    with triton.InferenceServerClient(server.state.grpc_url) as client:
        answers = client._client_stub.ModelStreamInfer(iter([request]), timeout=PATIENCE_S)
        for answer in answers:
            assert server.state.server_id not in answer.error_message


@QUICK
@given(
    name=st.sampled_from(["text_input", "max_tokens", "stop_words", "embedding_bias_weights"]),
    shape=st.lists(st.integers(0, 3), min_size=1, max_size=3),
)
def test_arrays_of_any_shape_by_grpc(server: RunningServer, name: str, shape: list[int]) -> None:
    kinds = {"max_tokens": (np.int32, "INT32"), "embedding_bias_weights": (np.float32, "FP32")}
    dtype, datatype = kinds.get(name, (np.object_, "BYTES"))
    prompt = triton.InferInput("text_input", [1, 1], "BYTES")
    prompt.set_data_from_numpy(np.asarray([[PROMPT.encode()]], np.object_))
    tensor = triton.InferInput(name, shape, datatype)
    tensor.set_data_from_numpy(np.full(shape, b"1" if datatype == "BYTES" else 1).astype(dtype))
    answers: list[object] = []
    with triton.InferenceServerClient(server.state.grpc_url) as client:
        client.start_stream(lambda result, error: answers.append(error or result))
        with suppress(InferenceServerException):
            client.async_stream_infer(FRONT_MODEL, [tensor] if name == "text_input" else [prompt, tensor])
        client.stop_stream()
    assert answers
    assert server.state.server_id not in str(answers[0])


@pytest.mark.parametrize("place", ["request", "output"])
def test_parameters_by_grpc(server: RunningServer, place: str) -> None:
    """A tritonserver that classifies a text divides by zero."""
    tensors = {"text_input": np.asarray([[b"a"]], np.object_), "max_tokens": np.asarray([[2]], np.int32)}
    with triton.InferenceServerClient(server.state.grpc_url) as client:
        for name in ("classification", "binary_data", "shared_memory_byte_size", "priority", "timeout", "sequence_id"):
            request = infer_request(FRONT_MODEL, "", tensors)
            holder = request if place == "request" else request.outputs.add(name="text_output")
            holder.parameters[name].int64_param = 2
            assert list(client._client_stub.ModelStreamInfer(iter([request]), timeout=PATIENCE_S))
