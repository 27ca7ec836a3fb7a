"""The few calls that our served models make to Triton's Python backend, in one place.

`triton_python_backend_utils` exists only inside a server, so it is imported inside the functions.
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
    RepositoryError,
    RequestError,
    UserError,
    meaning_of,
    refused,
)
from pipeline.triton_models.tensors import Array, Tensors


def parameter(config: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """A parameter of config.pbtxt. Raises RepositoryError if it is missing and there is no default."""
    try:
        value: str = config["parameters"][name]["string_value"]
    except KeyError:
        if default is not None:
            return default
        raise RepositoryError(
            f"The config of {config['name']} lacks the parameter {name}. Render it again with `lookahead repo`."
        ) from None
    return value


class Client:
    """The client of one request, for sending its responses. Thread safe.

    Triton frees the request with its last response, and a query about the request after that reads freed memory and
    crashes the server. So a lock separates the query from the last response.

    If Triton drops outputs that the request did not ask for, it does so without Python's lock, which corrupts the
    process's memory. So such outputs must never reach it: `answer` sends responses with outputs.

    outputs: names of the requested outputs.
    """

    def __init__(self, request: Any) -> None:
        self.outputs = frozenset(request.requested_output_names())
        self._sender = request.get_response_sender()
        self._lock = threading.Lock()
        self._done = self._gone = False

    def answer(self, tensors: Mapping[str, Array], *, last: bool) -> None:
        """Send the requested ones of the tensors."""
        self.send(response_of({name: value for name, value in tensors.items() if name in self.outputs}), last=last)

    def send(self, response: Any = None, *, last: bool) -> None:
        """Send a response without outputs, such as an error. last without a response: only mark the end. After the last
        response nothing is sent: a request may be stopped while its last response goes out."""
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
        """Whether no query is needed any more: the last response was sent, or Triton has reported that the client
        left."""
        return self._done or self._gone

    def is_gone(self) -> bool:
        """Whether the client left before its last response."""
        with self._lock:
            self._gone = self._gone or (not self._done and bool(self._sender.is_cancelled()))
            return self._gone


class CallResponses:
    """Keeps responses of calls to other models alive as long as Triton refers to them. Used from one thread.

    Triton forgets a call in a separate thread. That frees objects without other references, numpy arrays included,
    without Python's lock, which corrupts the process's memory. So this class must hold the last reference to a
    response. Triton's thread works through a queue in which a call's end precedes any later query, so the answer to a
    query shows that the thread has finished with all responses stored before.
    """

    def __init__(self) -> None:
        self._kept: list[Any] = []

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, responses: Any) -> None:
        """Responses of a call that has ended."""
        self._kept.append(responses)

    def is_gone(self, client: Client) -> bool:
        """Query whether a client has left. If Triton was queried, drop the responses stored before."""
        if client.is_settled:
            return client.is_gone()
        before, self._kept = self._kept, []
        gone = client.is_gone()
        before.clear()
        return gone


def drop_requests() -> None:
    """Free what errors still hold of ended requests. For the end of a model: after it Triton unmaps the memory to which
    they refer, and freeing them then ends the process with a segmentation fault."""
    gc.collect()


def hide_torch() -> None:
    """Keep transformers from importing torch in a process that only tokenises: it would take 200 MB and seconds."""
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # None is how Python marks what must not be imported


def tensors_of(request: Any) -> dict[str, Array]:
    return {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}


def outputs_of_call(responses: Iterable[Any]) -> Tensors:
    """Output tensors of the responses to a call of ours. Raises RequestError if the model refused it, BusyError if it
    was too busy, EngineError if it is gone."""
    found: dict[str, Array] = {}
    for response in responses:
        if response.has_error():
            raise request_error(response.error())
        # A response without outputs only marks the end. Copies, because the memory belongs to the response.
        found |= {tensor.name(): tensor.as_numpy().copy() for tensor in response.output_tensors()}
    if not found:  # every answer has outputs: at times Triton loses the error with which its full queue refused
        raise BusyError("busy: the model gave no answer; send the request again later")
    return found


def response_of(tensors: Mapping[str, Array]) -> Any:
    import triton_python_backend_utils as pb_utils

    return pb_utils.InferenceResponse([pb_utils.Tensor(name, value) for name, value in tensors.items()])


def error_response(error: Exception) -> Any:
    """An error for the client, with a code: send again later (UNAVAILABLE, 503), send something else (INVALID_ARG,
    400), or report a bug (INTERNAL, 500)."""
    import triton_python_backend_utils as pb_utils

    kind = pb_utils.TritonError
    if not isinstance(error, UserError):
        return pb_utils.InferenceResponse(error=kind(f"{FAULT}{error!r}", kind.INTERNAL))
    if isinstance(error, BusyError):
        return pb_utils.InferenceResponse(error=kind(str(error), kind.UNAVAILABLE))
    sentence = refused(str(error)) if isinstance(error, RequestError) else str(error)
    return pb_utils.InferenceResponse(error=kind(sentence, kind.INVALID_ARG))


def request_error(error: Any) -> EngineError | RequestError:
    import triton_python_backend_utils as pb_utils

    return refusal(error.message(), error.code() == pb_utils.TritonError.UNAVAILABLE)


def refusal(sentence: str, busy: bool = False) -> EngineError | RequestError:
    """The error of a called model, without the prefixes of Triton and TensorRT-LLM: EngineError if its process is gone.
    busy: whether its code means busy; the text may mean it too."""
    for prefix in ("Error when running inference: ", "due to the following error: "):
        sentence = sentence.rpartition(prefix)[2]
    meaning = "busy" if busy else meaning_of(sentence)
    if meaning in ("busy", "leaving"):
        return BusyError(sentence)
    return EngineError(sentence) if meaning == "dead" else RequestError(sentence)
