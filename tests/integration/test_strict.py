"""The BLS loop against TensorRT-LLM's contract, end to end: the torch engine in strict mode, served as two models.

`tensorrt_llm` plays an engine for external drafts, `tensorrt_llm_lookahead` one built for lookahead decoding, as a
config with speculation `both` has them; clients speak gRPC. Sizes are small so that every limit is near.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from pipeline.config.places import Places
from pipeline.config.resolution import resolve_config
from pipeline.config.schema import ResolvedConfig
from pipeline.engine.submission import Submission
from pipeline.engine.tensorrt_llm.instance import LOOKAHEAD_MODEL, TARGET_MODEL
from pipeline.engine.torch.load import create_scheduler
from pipeline.errors import RequestError
from pipeline.repository import model_config
from pipeline.served.strict import strict_profile
from pipeline.served.text_codec import TextCodec, load_codec
from pipeline.served.text_request import text_request
from pipeline.serving.client import Completion, TextQuery, complete, stream_text
from pipeline.serving.road import Served, launch, prepare
from pipeline.serving.server import RunningServer

pytestmark = [pytest.mark.triton, pytest.mark.slow]

MAX_SEQ_LEN, LONGEST_PROMPT, MAX_DRAFT_LEN = 320, 256, 6
OVERRIDES = (
    "backend=torch",
    "device=cpu",
    "engine.strict_tensorrt_llm=true",
    "drafting.planner=fixed",  # neither measured with the build nor held back by what calls cost
    "drafting.max_draft_tokens=16",
    f"engine.max_seq_len={MAX_SEQ_LEN}",
    f"engine.max_num_tokens={LONGEST_PROMPT}",  # without chunked context no prompt may be longer
    "engine.prefill_chunk=128",
    f"tensorrt_llm.max_external_draft_len={MAX_DRAFT_LEN}",
    *(f"server.{name}_port=0" for name in ("http", "grpc", "metrics")),
)
PROMPT = "the rat at the tea; the rat at the tea; the rat"
SAMPLED = {"temperature": 0.8, "top_p": 0.9, "seed": 5}


def config(where: Places, *overrides: str) -> ResolvedConfig:
    return resolve_config("tiny-random-llama", "latency", (*OVERRIDES, *overrides), where=where)


@pytest.fixture(scope="module")
def served(where: Places, tmp_path_factory: pytest.TempPathFactory) -> Served:
    """The repository of speculation `both`: a second strict model beside the first, and a front that knows of it."""
    rendered = prepare(
        config(where, "tensorrt_llm.speculation=both"), where, tmp_path_factory.mktemp("repository") / "both"
    )
    folder = rendered.repository.folder
    shutil.copytree(folder / TARGET_MODEL, folder / LOOKAHEAD_MODEL)
    for name, values in (
        (LOOKAHEAD_MODEL, {"strict_tensorrt_llm": "lookahead"}),
        ("lookahead_bls", {f"{LOOKAHEAD_MODEL}_model_name": LOOKAHEAD_MODEL}),
    ):
        path = folder / name / "config.pbtxt"
        message = model_config.read(path)
        message.name = name
        model_config.set_parameters(message, values)
        path.write_text(model_config.to_text(message))
    return rendered


@pytest.fixture(scope="module")
def server(served: Served, where: Places, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    running = launch(served, where, tmp_path_factory.mktemp("run"))
    yield running
    running.stop()


@pytest.fixture(scope="module")
def codec(served: Served) -> TextCodec:
    return load_codec(served.artifact.tokenizer_dir, served.artifact.engine_dir)


@pytest.fixture(scope="module")
def reference(served: Served) -> Any:
    """Plain decoding in this process, by the same engine without a server or drafts."""
    scheduler = create_scheduler(replace(served.artifact, resolved=strict_profile(served.resolved)))

    def decode(request: Any) -> list[int]:
        return scheduler.run([Submission(request, "none")])[0].output_ids

    return decode


def ask(server: RunningServer, **fields: Any) -> Completion:
    query = TextQuery(**({"text_input": PROMPT, "max_tokens": 40, "return_statistics": True} | fields))
    return complete(query, server.state.grpc_url, "grpc", timeout_s=60)


def ids_of(completion: Completion) -> list[int]:
    assert completion.statistics is not None
    ids: list[int] = completion.statistics["output_ids"]
    return ids


PROMPTS = (PROMPT, "a tea for the rat, a tea for", "日本 🤷🏽‍♀️ 日本")


def request_of(codec: TextCodec, text: str, max_tokens: int, **fields: Any) -> Any:
    """The request that a client's fields stand for, as the BLS model reads it."""
    dtypes = {"seed": np.uint64, "end_id": np.int32}
    tensors = {"text_input": np.asarray([[text.encode()]], np.object_), "max_tokens": np.asarray([[max_tokens]])}
    tensors |= {name: np.asarray([[value]], dtypes.get(name, np.float32)) for name, value in fields.items()}
    return text_request(codec, tensors, "reference", "none").generation


def text_of_length(num_tokens: int) -> str:
    """Text of so many tokens: digits do not merge."""
    return ("7309165284" * LONGEST_PROMPT)[:num_tokens]


@pytest.mark.parametrize("fields", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_every_strategy_gives_the_tokens_of_plain_decoding(server, codec, reference, fields):
    for prompt in PROMPTS:
        expected = reference(request_of(codec, prompt, 40, **fields))
        for strategy in ("none", "trie", "trie", "auto") + (() if fields else ("lookahead",)):
            for stream in (False, True):
                completion = ask(server, text_input=prompt, strategy=strategy, stream=stream, **fields)
                assert ids_of(completion) == expected, (prompt, strategy, stream)
                assert completion.finish_reason == "length"


def test_greedy_requests_go_to_the_lookahead_engine_and_sampled_ones_to_the_other_unless_they_say(server):
    def model_of(**fields: Any) -> tuple[str, str]:
        statistics = ask(server, max_tokens=4, **fields).statistics
        assert statistics is not None
        return statistics["strategy"], statistics["model"]

    assert model_of() == ("lookahead", LOOKAHEAD_MODEL)
    assert model_of(**SAMPLED) == ("trie", TARGET_MODEL)
    assert model_of(repetition_penalty=1.3) == ("trie", TARGET_MODEL)
    assert model_of(strategy="trie") == ("trie", TARGET_MODEL)
    assert model_of(strategy="none") == ("none", TARGET_MODEL)


def test_drafts_of_every_length_give_the_same_text_and_known_text_is_accepted(server):
    known = ids_of(ask(server, strategy="none"))
    longest: dict[int, int] = {}
    for num_draft_tokens in range(MAX_DRAFT_LEN + 3):
        # The first time a namespace knows nothing, and the client's own guess is nonsense.
        for prediction in ("the tea at the rat at the tea at", None):
            completion = ask(
                server,
                strategy="trie",
                num_draft_tokens=num_draft_tokens,
                prediction=prediction,
                namespace=f"length {num_draft_tokens}",
            )
            assert ids_of(completion) == known
        assert completion.statistics is not None
        assert num_draft_tokens or not completion.statistics["num_draft_tokens"]
        longest[num_draft_tokens] = max(completion.statistics["acceptance_lengths"])

    assert all(length <= min(asked, MAX_DRAFT_LEN) + 1 for asked, length in longest.items())
    assert all(length > 1 for asked, length in longest.items() if asked)


@pytest.mark.parametrize("strategy", ["none", "trie", "lookahead"])
def test_an_end_token_ends_the_output_wherever_it_comes(server, codec, reference, strategy):
    """Also inside a chain: the trie knows the text that goes on behind it."""
    whole = ids_of(ask(server, strategy="trie", namespace="ends"))
    for place in (0, 1, 5, 17):
        end_id = whole[place]
        expected = reference(request_of(codec, PROMPT, 40, end_id=end_id))
        completion = ask(server, strategy=strategy, namespace="ends", end_id=end_id)
        assert ids_of(completion) == expected
        assert completion.finish_reason == "end_token"


@pytest.mark.parametrize(("strategy", "reserve"), [("none", MAX_DRAFT_LEN), ("trie", MAX_DRAFT_LEN), ("lookahead", 15)])
def test_output_goes_to_the_engines_end_past_the_longest_prompt(server, codec, reference, strategy, reserve):
    """Past the longest prompt the text cannot be sent again, so the rest comes of one call."""
    for num_prompt in (LONGEST_PROMPT - 20, LONGEST_PROMPT):
        text = text_of_length(num_prompt)
        request = request_of(codec, text, 500, end_id=-1)
        assert len(request.prompt_ids) == num_prompt
        expected = reference(request)[: MAX_SEQ_LEN - reserve - len(request.prompt_ids)]
        for _ in range(2):  # the second time the trie knows it all
            completion = ask(server, text_input=text, max_tokens=500, strategy=strategy, end_id=-1, namespace="end")
            assert ids_of(completion) == expected
            assert completion.finish_reason == "length"


def test_a_prompt_beyond_the_longest_is_refused_with_a_sentence(server):
    text = text_of_length(LONGEST_PROMPT + 1)
    with pytest.raises(RequestError, match=f"the engine holds {LONGEST_PROMPT + 1} with the output"):
        ask(server, text_input=text)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"strategy": "hybrid"}, "offers lookahead, none, trie and auto"),
        ({"strategy": "lookahead"} | SAMPLED, "decodes greedily and does not apply temperature, top_p"),
        ({"strategy": "lookahead", "repetition_penalty": 1.2}, "does not apply repetition_penalty"),
        ({"strategy": "trie", "min_p": 0.1} | SAMPLED, "min_p is 0.1; TensorRT-LLM's tensors have no such setting"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_an_engine_would_ignore_is_refused_and_the_next_request_works(server, wrong, sentence):
    with pytest.raises(RequestError, match=sentence):
        ask(server, **wrong)
    assert ask(server, max_tokens=2).finish_reason == "length"


def test_many_clients_at_once_get_what_they_get_alone(server):
    ways: list[dict[str, Any]] = [
        {"strategy": "trie"},
        {"strategy": "lookahead"},
        {"strategy": "none", "stream": False},
        {"strategy": "trie", **SAMPLED},
        {"strategy": "auto", "stop_words": ["e"]},
    ]

    def work(number: int) -> list[int]:
        return ids_of(ask(server, text_input=f"{PROMPT} {number % 6}", **ways[number % 5]))

    alone = {number: work(number) for number in range(30)}
    with ThreadPoolExecutor(8) as pool:
        together = dict(zip(alone, pool.map(work, alone), strict=True))

    assert together == alone


def test_clients_that_leave_make_room_for_others(server):
    for strategy in ("none", "trie", "lookahead"):
        for _ in range(6):  # more than an engine has places
            chunks = stream_text(TextQuery(PROMPT, 250, strategy=strategy, end_id=-1), server.state.grpc_url, "grpc")
            next(chunks)
            chunks.close()
        started = time.monotonic()
        assert ask(server, strategy=strategy, max_tokens=3).finish_reason == "length"
        assert time.monotonic() - started < 15


# --- the model `tensorrt_llm` itself, as clients of TensorRT-LLM call it ---------------------------------------------


class Caller:
    """Sends tensors to a model over a gRPC stream; answers are lists of outputs by name, errors their sentence."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __call__(self, model: str, tensors: dict[str, Any], **keywords: Any) -> list[dict[str, np.ndarray]] | str:
        answers: list[Any] = []
        with grpc.InferenceServerClient(self._url) as client:
            client.start_stream(lambda result, error: answers.append(error or result))
            client.async_stream_infer(model, inputs_of(grpc, tensors), **keywords)
            client.stop_stream()
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
def call(server: RunningServer) -> Caller:
    return Caller(server.state.grpc_url)


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


REFUSED = [
    (TARGET_MODEL, {"draft_input_ids": [[1] * 7]}, "holds 7 tokens; the engine verifies at most 6"),
    (TARGET_MODEL, {"draft_input_ids": np.zeros((1, 0), np.int32)}, "draft_input_ids is empty"),
    (TARGET_MODEL, {"draft_input_ids": [[1]], "streaming": [[True]]}, "a request with draft tokens is not streamed"),
    (TARGET_MODEL, {"draft_input_ids": [[1, 511, 512]]}, "outside the vocabulary"),
    (TARGET_MODEL, {"draft_input_ids": [[1, 2]], "draft_parents": [[-1, -1]]}, "draft_parents"),
    (TARGET_MODEL, {"lookahead_window_size": [[2]]}, "belong together"),
    (
        TARGET_MODEL,
        {"lookahead_window_size": [[2]], "lookahead_ngram_size": [[2]], "lookahead_verification_set_size": [[1]]},
        "has no lookahead parameters",
    ),
    (LOOKAHEAD_MODEL, {"draft_input_ids": [[1]]}, "drafts for itself"),
    (
        LOOKAHEAD_MODEL,
        {"lookahead_window_size": [[6]], "lookahead_ngram_size": [[3]], "lookahead_verification_set_size": [[3]]},
        "no value may be larger",
    ),
    (LOOKAHEAD_MODEL, {"input_ids": [[5]], "input_lengths": [[1]]}, "n-grams of 3 need at least 2"),
    (TARGET_MODEL, {"input_ids": [[5] * 257], "input_lengths": [[257]]}, "257 tokens; the engine takes at most 256"),
    (TARGET_MODEL, {"input_ids": [[2**31 - 1]], "input_lengths": [[1]]}, "the vocabulary is 0"),
    (TARGET_MODEL, {"request_output_len": [[0]]}, "request_output_len is 0"),
    (TARGET_MODEL, {"end_id": [[512]]}, "end_id is 512"),
    (TARGET_MODEL, {"beam_width": [[2]]}, "beam_width is 2"),
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


def test_stop_ends_the_request_of_that_id_and_answers_with_nothing(server, prompt):
    answers: list[Any] = []
    with grpc.InferenceServerClient(server.state.grpc_url) as client:
        client.start_stream(lambda result, error: answers.append(error or outputs_of(result)))
        for _ in range(4):  # as many as run at once, so that none has ended when it is stopped
            client.async_stream_infer(
                TARGET_MODEL, inputs_of(grpc, asked(prompt, 250, streaming=[[True]])), request_id="x"
            )
        client.async_stream_infer(
            TARGET_MODEL, inputs_of(grpc, asked([0], 0, stop=[[True]])), request_id="x", parameters={"Streaming": True}
        )
        client.stop_stream()

    assert {} in answers
    assert sum(answer["output_ids"].size for answer in answers if answer) < 4 * 250
