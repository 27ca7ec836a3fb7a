"""Clients of the served models, with a stand-in for Triton's response sender."""

from __future__ import annotations

import sys
import threading
import time
import urllib.parse
from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

from pipeline.errors import BusyError, EngineError, RequestError, streamed_error
from pipeline.gateway.upstream_errors import refusal_of
from pipeline.triton_models.python_backend import (
    CallResponses,
    ResponseSender,
    error_response,
    outputs_of_call,
    request_error,
)

FINAL = 1


class Sender:
    """Like Triton's response sender, it must not be used after the last response."""

    def __init__(self, cancelled: bool = False) -> None:
        self.cancelled = cancelled
        self.freed = False
        self.sent: list[tuple[object, int]] = []

    def send(self, response: object = None, flags: int = 0) -> None:
        assert not self.freed
        self.freed = flags == FINAL
        time.sleep(0.001)  # the server takes a while, in which another thread may come
        self.sent.append((response, flags))

    def is_cancelled(self) -> bool:
        assert not self.freed, "the server would die"
        time.sleep(0.001)
        assert not self.freed, "the server would die"
        return self.cancelled


@dataclass(frozen=True)
class Error:
    """Like Triton's error, but for the type of its codes."""

    sentence: str
    kind: str = "internal"
    INTERNAL: ClassVar[str] = "internal"
    INVALID_ARG: ClassVar[str] = "invalid"
    UNAVAILABLE: ClassVar[str] = "unavailable"

    def message(self) -> str:
        return self.sentence

    def code(self) -> str:
        return self.kind


@pytest.fixture(autouse=True)
def backend(monkeypatch: pytest.MonkeyPatch) -> None:
    utils = SimpleNamespace(
        TRITONSERVER_RESPONSE_COMPLETE_FINAL=FINAL,
        Tensor=lambda name, value: (name, value),
        InferenceResponse=lambda tensors=(), error=None: error or list(tensors),
        TritonError=Error,
    )
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", utils)


def client_of(sender: Sender, *outputs: str) -> ResponseSender:
    return ResponseSender(
        SimpleNamespace(get_response_sender=lambda: sender, requested_output_names=lambda: set(outputs))
    )


def test_responses_go_out_in_order_and_the_last_is_marked():
    sender = Sender()
    client = client_of(sender)

    client.send("one", last=False)
    client.send("two", last=True)

    assert sender.sent == [("one", 0), ("two", FINAL)]


def test_an_end_without_a_response():
    sender = Sender()

    client_of(sender).send(last=True)

    assert sender.sent == [(None, FINAL)]


def test_nothing_is_sent_after_the_last_response():
    sender = Sender()
    client = client_of(sender)

    client.send(last=True)
    client.answer({}, last=True)

    assert len(sender.sent) == 1


def test_outputs_that_were_not_asked_for_never_reach_triton():
    sender = Sender()
    client = client_of(sender, "a", "c")

    client.answer({"a": 1, "b": 2}, last=False)  # type: ignore[dict-item]
    client.answer({}, last=True)

    assert sender.sent == [([("a", 1)], 0), ([], FINAL)]


@pytest.mark.parametrize("cancelled", [True, False])
def test_a_client_is_gone_when_its_request_was_cancelled(cancelled):
    assert client_of(Sender(cancelled)).is_gone() is cancelled


def test_the_server_is_not_asked_about_a_request_that_has_ended():
    client = client_of(Sender(cancelled=True))
    client.send(last=True)

    assert not client.is_gone()


def test_responses_of_calls_are_kept_until_triton_answers_a_later_question():
    kept = CallResponses()
    ended = client_of(Sender())
    ended.send(last=True)

    left = client_of(Sender(cancelled=True))
    kept.keep("one")
    assert not kept.is_gone(ended)  # nobody was asked
    assert len(kept) == 1
    assert kept.is_gone(left)
    assert len(kept) == 0
    kept.keep("two")
    assert kept.is_gone(left)  # known already, so nobody was asked
    assert len(kept) == 1

    class Late(Sender):
        def is_cancelled(self) -> bool:
            kept.keep("three")  # as if a call had ended after the question
            return super().is_cancelled()

    assert not kept.is_gone(client_of(Late()))
    assert len(kept) == 1


def test_a_question_in_another_thread_never_meets_the_last_response():
    for _ in range(30):
        client = client_of(Sender())
        faults: list[BaseException] = []

        def ask(client: ResponseSender = client, faults: list[BaseException] = faults) -> None:
            try:
                for _ in range(4):
                    client.is_gone()
            except AssertionError as error:
                faults.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        time.sleep(0.0015)
        client.send("end", last=True)
        thread.join()

        assert not faults


@pytest.mark.parametrize(
    ("error", "sentence", "code"),
    [
        (BusyError("busy: send it again"), "busy: send it again", "unavailable"),
        (RequestError("max_tokens is -3"), "max_tokens is -3", "invalid"),
        (RequestError("strategy is 'shm'"), "request refused: strategy is 'shm'", "invalid"),
        (RequestError("request refused: strategy is 'shm'"), "request refused: strategy is 'shm'", "invalid"),
        (ZeroDivisionError("oh"), "internal error: ZeroDivisionError('oh')", "internal"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_has_the_code_that_says_what_to_do(error, sentence, code):
    assert error_response(error) == Error(sentence, code)


def test_a_long_error_is_cut_because_grpc_sends_it_in_a_header():
    """A client of gRPC saw "received metadata size exceeds hard limit" for a grammar of 20 KB that was quoted."""
    sent = error_response(RequestError("the grammar is 😀" + "😀shm" * 9000))

    assert sent.message().startswith("request refused: the grammar is 😀")
    assert len(urllib.parse.quote(sent.message())) < 8192


def test_the_targets_error_is_passed_on_in_its_own_words_and_kind():
    busy = request_error(Error("Error when running inference: busy", "unavailable"))
    assert isinstance(busy, BusyError)
    assert str(busy) == "busy"

    # The code that Triton gives to another model.
    full = request_error(Error("Error when running inference: [request id: 3] Exceeds maximum queue size", "internal"))
    assert isinstance(full, BusyError)

    wrong = request_error(Error("Executor failed due to the following error: the prompt is too long", "internal"))
    assert not isinstance(wrong, BusyError)
    assert str(wrong) == "the prompt is too long"


@pytest.mark.parametrize(
    "words", ["busy: ", "is shutting down", "shm", "Stub process", "is not ready", "internal error: "]
)
def test_words_of_a_client_in_a_refusal_do_not_mean_that_the_model_is_busy_or_gone(words):
    sent = error_response(RequestError(f"strategy is {words!r}; it must be one of none, auto"))

    assert type(request_error(sent)) is RequestError
    assert type(streamed_error(sent.message())) is RequestError
    assert refusal_of(400, sent.message(), "f00").status == 400


def test_a_model_that_is_gone_is_no_refusal():
    gone = request_error(Error("Stub process 'tensorrt_llm_0_0' is not healthy."))
    sent = error_response(gone)

    assert type(gone) is EngineError
    assert type(streamed_error(sent.message())) is EngineError


@pytest.mark.parametrize(
    "sentence",
    [
        "Server not ready",
        "Server exiting",
        "Server is stopping, scheduler for model has stopped accepting new inference requests",
        "GRPC server is shutting down and has stopped accepting new requests.",
        "'lookahead_bls' version 1 is not at ready state",
        "Request for unknown model: 'lookahead_bls' has no available versions",
    ],
)
def test_an_error_of_a_triton_that_starts_or_ends_is_no_refusal(sentence):
    assert type(streamed_error(sentence)) is EngineError
    assert refusal_of(500, sentence, "f00").status == 503


def test_a_fault_of_a_model_is_no_refusal():
    sent = error_response(request_error(error_response(ZeroDivisionError("oh"))))

    assert sent.code() == Error.INTERNAL
    assert type(streamed_error(sent.message())) is RuntimeError


class Response:
    """A response to a call of ours."""

    def __init__(self, *outputs: SimpleNamespace, error: Error | None = None) -> None:
        self._outputs, self._error = outputs, error

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> Error | None:
        return self._error

    def output_tensors(self) -> tuple[SimpleNamespace, ...]:
        return self._outputs


def test_outputs_of_a_call_are_copies_of_those_of_its_responses():
    value = np.ones(2)
    output = SimpleNamespace(name=lambda: "output_ids", as_numpy=lambda: value)

    outputs = outputs_of_call([Response(output), Response()])
    value[:] = 0

    assert outputs["output_ids"].tolist() == [1, 1]


@pytest.mark.parametrize(
    "responses",
    [[], [Response()], [Response(error=Error("Exceeds maximum queue size"))]],
    ids=["none", "empty", "error"],
)
def test_a_call_that_a_full_queue_refused_may_be_made_again(responses):
    with pytest.raises(BusyError):
        outputs_of_call(responses)
