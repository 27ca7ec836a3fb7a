"""Clients of the served models, over a response sender that behaves as Triton's."""

from __future__ import annotations

import sys
import threading
import time
from types import SimpleNamespace

import pytest

from pipeline.serving.triton import Client

FINAL = 1


class Sender:
    """Like Triton's response sender: not to be used in any way once the last response was sent."""

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


@pytest.fixture(autouse=True)
def backend(monkeypatch: pytest.MonkeyPatch) -> None:
    utils = SimpleNamespace(
        TRITONSERVER_RESPONSE_COMPLETE_FINAL=FINAL,
        Tensor=lambda name, value: (name, value),
        InferenceResponse=lambda tensors: list(tensors),
    )
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", utils)


def client_of(sender: Sender, *outputs: str) -> Client:
    return Client(SimpleNamespace(get_response_sender=lambda: sender, requested_output_names=lambda: set(outputs)))


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


def test_a_question_in_another_thread_never_meets_the_last_response():
    for _ in range(30):
        client = client_of(Sender())
        faults: list[BaseException] = []

        def ask(client: Client = client, faults: list[BaseException] = faults) -> None:
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
