"""Grammars, log probabilities and several outputs against a real tritonserver, by a client that knows tensors only."""

from __future__ import annotations

import json
import queue
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from pipeline.repository.names import FRONT_MODEL
from pipeline.server.server import RunningServer
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.triton, pytest.mark.slow]

PROMPT = "the rat at the tea; the rat at the tea"
SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["cat", "dog"]},
        "names": {"type": "array", "items": {"const": "x"}, "maxItems": 3},
    },
    "required": ["kind", "names"],
    "additionalProperties": False,
}
STRATEGIES = ("none", "lookahead", "trie", "hybrid")


def stream(server: RunningServer, **tensors: object) -> list[dict[str, np.ndarray]]:
    """The outputs of every response. Raises InferenceServerException if the server answers with an error."""
    inputs = []
    for name, value in {"text_input": PROMPT, "max_tokens": 60, **tensors}.items():
        array = np.asarray([[value.encode()]], np.object_) if isinstance(value, str) else np.asarray([[value]])
        array = array.astype(np.int32) if array.dtype == np.int64 else array
        array = array.astype(np.uint64) if name == "seed" else array
        array = array.astype(np.float32) if array.dtype == np.float64 else array
        tensor = grpc.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    found = []
    with grpc.InferenceServerClient(server.state.grpc_url) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        client.async_stream_infer(FRONT_MODEL, inputs, enable_empty_final_response=True)
        while True:
            result, error = answers.get(timeout=PATIENCE_S)
            if error is not None:
                raise error
            response = result.get_response()
            if response.outputs:
                found.append({output.name: result.as_numpy(output.name) for output in response.outputs})
            if response.parameters["triton_final_response"].bool_param:
                return found


def text_of(responses: list[dict[str, np.ndarray]]) -> str:
    return b"".join(response["text_output"].reshape(-1)[0] for response in responses).decode()


def guided(kind: str, guide: str) -> dict[str, str]:
    return {"guided_decoding_guide_type": kind, "guided_decoding_guide": guide}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_strategy_gives_the_same_matching_text(server, temperature):
    options = {**guided("json_schema", json.dumps(SCHEMA)), "temperature": temperature, "seed": 3}
    texts = {
        text_of(stream(server, strategy=strategy, stream=streams, **options))
        for strategy in STRATEGIES
        for streams in (False, True)
    }

    assert len(texts) == 1
    value = json.loads(texts.pop())
    assert set(value) == {"kind", "names"}
    assert value["kind"] in ("cat", "dog")
    assert set(value["names"]) <= {"x"}


def test_a_guide_that_cannot_be_used_gets_a_sentence_and_the_next_request_works(server):
    with pytest.raises(InferenceServerException, match="requires itself recursively"):
        stream(server, **guided("json_schema", json.dumps({"$ref": "#"})))
    assert text_of(stream(server, **guided("choice", '["left", "right"]'))) in ("left", "right")


def test_log_probabilities_are_the_same_with_drafts_and_belong_to_the_tokens(server):
    wanted = {"return_log_probs": True, "num_top_logprobs": 3, "return_prompt_log_probs": True, "stream": True}
    plain, drafted = (stream(server, strategy=name, max_tokens=20, **wanted) for name in ("none", "hybrid"))

    def joined(responses: list[dict[str, np.ndarray]], name: str, axis: int) -> np.ndarray:
        return np.concatenate([response[name] for response in responses if name in response], axis=axis)

    log_probs = joined(plain, "output_log_probs", 2)
    assert log_probs.shape == (1, 1, 20)
    assert np.allclose(log_probs, joined(drafted, "output_log_probs", 2), atol=1e-4)
    best = joined(plain, "top_logprobs", 1)
    assert best.shape == (1, 20, 3)
    assert np.array_equal(best[:, :, 0], log_probs[:, 0])  # greedy: the most probable token was taken
    assert np.array_equal(joined(plain, "top_logprob_ids", 1)[0, :, 0], joined(drafted, "top_logprob_ids", 1)[0, :, 0])
    assert joined(plain, "prompt_log_probs", 1).shape[1] > 10
    assert len([response for response in plain if "prompt_log_probs" in response]) == 1


def test_several_outputs_are_those_of_their_seeds(server):
    options = {"temperature": 1.0, "max_tokens": 16, "stream": True}
    responses = stream(server, seed=5, num_return_sequences=2, **options)
    texts = [
        text_of([response for response in responses if response["sequence_index"].item() == index])
        for index in range(2)
    ]

    assert texts == [text_of(stream(server, seed=seed, **options)) for seed in (5, 6)]
    assert texts[0] != texts[1]
