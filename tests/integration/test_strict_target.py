"""The model `tensorrt_llm` itself against TensorRT-LLM's contract, as its clients call it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from pipeline.repository.names import LOOKAHEAD_MODEL, TARGET_MODEL
from pipeline.server.server import RunningServer
from pipeline.triton_models.text_codec import TextCodec
from tests.integration.servers import streamed
from tests.integration.strict_repository import MAX_DRAFT_LEN, PROMPT, request_of
from tests.servers import wait_for

pytestmark = [pytest.mark.triton, pytest.mark.slow]


class Caller:
    """Sends tensors to a model over a gRPC stream; answers are lists of outputs by name, errors their sentence."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __call__(self, model: str, tensors: dict[str, Any], **keywords: Any) -> list[dict[str, np.ndarray]] | str:
        answers = streamed(self._url, model, inputs_of(grpc, tensors), **keywords)
        if isinstance(answers[0], InferenceServerException):
            return str(answers[0])
        return [outputs_of(answer) for answer in answers]


def inputs_of(library: Any, tensors: dict[str, Any]) -> list[Any]:
    inputs = []
    for name, value in tensors.items():
        array = value if isinstance(value, np.ndarray) else np.asarray(value, DTYPES.get(name, np.int32))
        tensor = library.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    return inputs


def outputs_of(result: Any) -> dict[str, np.ndarray]:
    return {output.name: result.as_numpy(output.name) for output in result.get_response().outputs}


FLAGS = ("streaming", "stop", "exclude_input_in_output", "return_perf_metrics", "return_num_output_tokens", "stream")
DTYPES = dict.fromkeys(FLAGS, np.bool_) | dict.fromkeys(
    ("temperature", "runtime_top_p", "repetition_penalty", "embedding_bias_weights"), np.float32
)
DTYPES |= {"seed": np.uint64}


def asked(prompt: list[int], num_tokens: int, **more: Any) -> dict[str, Any]:
    return {"input_ids": [prompt], "input_lengths": [[len(prompt)]], "request_output_len": [[num_tokens]]} | more


@pytest.fixture(scope="module")
def call(strict: RunningServer) -> Caller:
    return Caller(strict.state.grpc_url)


@pytest.fixture(scope="module")
def prompt(codec: TextCodec) -> list[int]:
    ids: list[int] = codec.encode(PROMPT).tolist()
    return ids


@pytest.fixture(scope="module")
def expected(codec: TextCodec, reference: Any) -> list[int]:
    ids: list[int] = reference(request_of(codec, PROMPT, 20, end_id=-1))
    return ids


@pytest.mark.parametrize("num_drafts", range(1, MAX_DRAFT_LEN + 1))
def test_a_chain_gives_its_right_part_and_one_token_more(call, prompt, expected, num_drafts):
    for num_right in range(num_drafts + 1):
        wrong = [(token + 1) % 400 for token in expected[num_right:num_drafts]]
        drafts = [[*expected[:num_right], *wrong]]
        more = {"draft_input_ids": drafts, "exclude_input_in_output": [[True]], "return_perf_metrics": [[True]]}
        (answer,) = call(TARGET_MODEL, asked(prompt, num_drafts + 1, **more))

        assert answer["output_ids"].tolist() == [[expected[: num_right + 1]]]
        assert answer["output_ids"].dtype == answer["sequence_length"].dtype == np.int32
        assert answer["sequence_length"].tolist() == [[num_right + 1]]
        assert answer["total_draft_tokens"].tolist() == [[num_drafts]]
        assert answer["total_accepted_draft_tokens"].tolist() == [[num_right]]
        assert not {"finish_reason", "num_steps", "batch_index", "sequence_index"} & answer.keys()


def test_an_end_token_is_neither_returned_nor_counted(call, prompt, expected):
    place = next(place for place in range(1, 5) if expected[place] not in expected[:place])
    end = {"end_id": [[expected[place]]], "exclude_input_in_output": [[True]]}
    for drafts in ({}, {"draft_input_ids": [expected[:place]]}, {"draft_input_ids": [expected[: place + 2]]}):
        (answer,) = call(TARGET_MODEL, asked(prompt, 7, **end, **drafts))
        assert answer["output_ids"].tolist() == [[expected[:place]]]
        assert answer["sequence_length"].tolist() == [[place]]


# All that is refused is in the unit tests of `strict`; these ways through Triton differ.
REFUSED = [
    (TARGET_MODEL, {"draft_input_ids": np.zeros((1, 0), np.int32)}, "draft_input_ids is empty"),
    (TARGET_MODEL, {"draft_input_ids": [[1, 2]], "draft_parents": [[-1, -1]]}, "draft_parents"),
    (LOOKAHEAD_MODEL, {"draft_input_ids": [[1]]}, "drafts for itself"),
    (TARGET_MODEL, {"stop": [[True]]}, "the request has no id"),
]


@pytest.mark.parametrize(("model", "wrong", "sentence"), REFUSED, ids=[sentence for _, _, sentence in REFUSED])
def test_what_the_contract_refuses_gets_a_sentence_and_the_next_request_works(
    call, prompt, expected, model, wrong, sentence
):
    answer = call(model, asked(prompt, 4) | wrong)
    assert isinstance(answer, str)
    assert sentence in answer
    (good,) = call(model, asked(prompt, 4))
    assert good["output_ids"].tolist() == [[prompt + expected[:4]]]


def test_a_request_that_leaves_out_the_sequence_length_is_refused(call, prompt):
    answer = call(TARGET_MODEL, asked(prompt, 4), outputs=[grpc.InferRequestedOutput("output_ids")])
    assert "must ask for the output sequence_length" in str(answer)


def test_streaming_gives_the_new_tokens_of_each_step(call, prompt, expected):
    for model in (TARGET_MODEL, LOOKAHEAD_MODEL):
        answers = call(model, asked(prompt, 20, streaming=[[True]]))
        tokens = [answer["output_ids"].reshape(-1).tolist() for answer in answers]
        assert [token for step in tokens for token in step] == expected
        assert len(tokens) > 5


def test_rows_of_one_request_are_answered_each_for_itself(call, prompt, expected):
    padded = [*prompt[:20], *[0] * (len(prompt) - 20)]
    tensors = {
        "input_ids": [prompt, padded, prompt],
        "input_lengths": [[len(prompt)], [20], [len(prompt)]],
        "request_output_len": [[4], [4], [7]],
        "exclude_input_in_output": [[True]] * 3,
    }
    answers = {answer["batch_index"].item(): answer for answer in call(TARGET_MODEL, tensors)}
    (short,) = call(TARGET_MODEL, asked(prompt[:20], 4, exclude_input_in_output=[[True]]))

    assert answers[0]["output_ids"].tolist() == [[expected[:4]]]
    assert answers[1]["output_ids"].tolist() == short["output_ids"].tolist()
    assert answers[2]["output_ids"].tolist() == [[expected[:7]]]


def test_stop_ends_the_request_of_that_id_and_answers_with_nothing(strict, prompt):
    tensors, stop = (
        inputs_of(grpc, each) for each in (asked(prompt, 250, streaming=[[True]]), asked([0], 0, stop=[[True]]))
    )

    def num_tokens() -> int:
        """Tokens of four outputs, which end before their limit if the stop arrives before that."""
        answers: list[Any] = []
        with grpc.InferenceServerClient(strict.state.grpc_url) as client:
            client.start_stream(lambda result, error: answers.append(error or outputs_of(result)))
            for _ in range(4):
                client.async_stream_infer(TARGET_MODEL, tensors, request_id="x")
            client.async_stream_infer(TARGET_MODEL, stop, request_id="x", parameters={"Streaming": True})
            client.stop_stream()
        assert {} in answers
        return sum(answer["output_ids"].size for answer in answers if answer)

    assert wait_for(lambda: num_tokens() < 4 * 250)
