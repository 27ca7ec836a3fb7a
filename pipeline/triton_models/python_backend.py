"""Wrappers of Triton's Python backend API: requests, responses and errors.

The module `triton_python_backend_utils` exists only inside a server, so functions import it.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from pipeline.errors import (
    FAULT,
    BusyError,
    EngineError,
    RequestError,
    UserError,
    meaning_of,
    refused,
)
from pipeline.triton_models.abandoned_calls import end_server_after_abandoned_call
from pipeline.triton_models.tensors import Array, Tensors

# Characters of an error, which may quote the request. gRPC sends it in a header: of one over 8 KiB clients may see
# "received metadata size exceeds hard limit" instead, and a character takes up to 12 bytes there.
_LONGEST_ERROR = 500


def parameter(config: Mapping[str, Any], name: str, default: str = "") -> str:
    """Value of a parameter in a parsed config.pbtxt."""
    value: str = config["parameters"].get(name, {"string_value": default})["string_value"]
    return value


class ResponseSender:
    """Sends the responses to one request. Thread safe.

    Triton frees the request with its last response. A later query about the request would read freed memory and crash
    the server, so a lock serializes the two.

    Triton drops outputs that the request did not ask for without holding Python's GIL, which corrupts memory. So
    responses with outputs go through `answer`, which sends requested outputs only.

    outputs: names of the requested outputs.
    """

    def __init__(self, request: Any) -> None:
        self.outputs = frozenset(request.requested_output_names())
        self._sender = request.get_response_sender()
        self._lock = threading.Lock()
        self._done = self._gone = False

    def answer(self, tensors: Mapping[str, Array], *, last: bool) -> None:
        """Send a response with those of the tensors that the request asks for."""
        self.send(response_of({name: value for name, value in tensors.items() if name in self.outputs}), last=last)

    def send(self, response: Any = None, *, last: bool) -> None:
        """Send a response without outputs, such as an error. With `last` and no response, only mark the end. Does
        nothing after the last response, because a request can be stopped while its last response is sent."""
        import triton_python_backend_utils as pb_utils

        with self._lock:
            if self._done:
                return
            if not last:
                self._sender.send(response)
                return
            self._done = True
            arguments = () if response is None else (response,)
            self._sender.send(*arguments, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    @property
    def is_settled(self) -> bool:
        """Whether `is_gone` needs no query: the last response was sent, or the client is known to have left."""
        return self._done or self._gone

    def is_gone(self) -> bool:
        """Whether the client left before its last response."""
        with self._lock:
            self._gone = self._gone or (not self._done and bool(self._sender.is_cancelled()))
            return self._gone


class CallResponses:
    """Keeps the responses of calls to other models alive as long as Triton refers to them. Not thread safe.

    A thread of Triton drops its references at the end of a call without holding Python's GIL. If they are the last
    ones, that frees Python objects and corrupts memory. So this class holds a reference longer than Triton. Triton's
    thread works through a queue in which the end of a call precedes any later query about a client. So the answer to a
    query shows that the thread has dropped all responses stored before the query.
    """

    def __init__(self) -> None:
        self._kept: list[Any] = []

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, responses: Any) -> None:
        """Store the responses of a call that has ended."""
        self._kept.append(responses)

    def is_gone(self, client: ResponseSender) -> bool:
        """Return whether a client has left. If that needs a query, drop the responses stored before it."""
        if client.is_settled:
            return client.is_gone()
        before, self._kept = self._kept, []
        gone = client.is_gone()
        before.clear()
        return gone


def drop_requests() -> None:
    """Free the ended requests that tracebacks still refer to. Call it at the end of a model. Triton unmaps their memory
    afterwards, and freeing them then is a segmentation fault."""
    gc.collect()


def hide_torch() -> None:
    """Prevent transformers from importing torch in a process that only tokenizes, which saves 200 MB and seconds."""
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # with None, Python's import raises ImportError


def tensors_of(request: Any) -> dict[str, Array]:
    """Input tensors of a Triton request. They are views of memory that Triton owns."""
    return {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}


def outputs_of_call(responses: Iterable[Any]) -> Tensors:
    """Output tensors of the responses to a call. Raises as `ModelCaller.call` does."""
    found: dict[str, Array] = {}
    for response in responses:
        if response.has_error():
            raise request_error(response.error())
        # A response without outputs only marks the end. Copies, because the memory belongs to the response.
        found |= {tensor.name(): tensor.as_numpy().copy() for tensor in response.output_tensors()}
    if not found:  # Triton sometimes loses the error of a full queue
        raise BusyError("busy: the model did not respond; send the request again later")
    return found


def response_of(tensors: Mapping[str, Array]) -> Any:
    """A Triton response with these output tensors."""
    import triton_python_backend_utils as pb_utils

    return pb_utils.InferenceResponse([pb_utils.Tensor(name, value) for name, value in tensors.items()])


def error_response(error: Exception) -> Any:
    """Error response with a code: UNAVAILABLE (503) to retry later, INVALID_ARG (400) for a request to correct,
    INTERNAL (500) for a bug. A long message is cut."""
    import triton_python_backend_utils as pb_utils

    kind = pb_utils.TritonError
    if not isinstance(error, UserError):
        code, sentence = kind.INTERNAL, f"{FAULT}{error!r}"
    elif isinstance(error, BusyError):
        code, sentence = kind.UNAVAILABLE, str(error)
    else:
        code, sentence = kind.INVALID_ARG, refused(str(error)) if isinstance(error, RequestError) else str(error)
    return pb_utils.InferenceResponse(error=kind(sentence[:_LONGEST_ERROR], code))


def request_error(error: Any) -> Exception:
    """The exception for Triton's error of a call, see `refusal`. Ends the server if Triton has given up the call."""
    import triton_python_backend_utils as pb_utils

    end_server_after_abandoned_call(error.message())
    return refusal(error.message(), error.code() == pb_utils.TritonError.UNAVAILABLE)


def refusal(sentence: str, busy: bool = False) -> Exception:
    """Error for the message of a called model, without the prefixes of Triton and TensorRT-LLM: BusyError if it is
    busy, EngineError if its process has ended, RuntimeError for a fault of the model, else RequestError. busy: whether
    the status code means busy; the message may mean it too."""
    for prefix in ("Error when running inference: ", "due to the following error: "):
        sentence = sentence.rpartition(prefix)[2]
    meaning = "busy" if busy else meaning_of(sentence)
    if meaning in ("busy", "leaving"):
        return BusyError(sentence)
    return {"dead": EngineError, "fault": RuntimeError}.get(meaning, RequestError)(sentence)
