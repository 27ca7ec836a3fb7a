"""The few calls that our served models make to Triton's Python backend, in one place.

`triton_python_backend_utils` exists only inside a server, so it is imported inside the functions.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from pipeline.errors import BusyError, RepositoryError, RequestError, UserError
from pipeline.triton_models.tensors import Array, Tensors

# How Triton refuses a request to a model whose queue is full. Its code says so to clients, but not to other models.
_QUEUE_IS_FULL = "Exceeds maximum queue size"


def parameter(config: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """A parameter of config.pbtxt. Raises RepositoryError if it is not there and there is no default."""
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
    """Who waits for the responses to one request. May be used from several threads.

    Triton frees what it knows of a request with its last response, and asking about it after that reads freed memory:
    the whole server dies. So the question and the last response keep each other out.

    Triton drops outputs that the request does not ask for while it does not hold Python's lock, which corrupts the
    process's memory. So such outputs must never reach it: responses with outputs are sent with `answer`.

    outputs: names that the request asks for."""

    def __init__(self, request: Any) -> None:
        self.outputs = frozenset(request.requested_output_names())
        self._sender = request.get_response_sender()
        self._lock = threading.Lock()
        self._done = self._gone = False

    def answer(self, tensors: Mapping[str, Array], *, last: bool) -> None:
        """Send those of the tensors that are asked for."""
        self.send(response_of({name: value for name, value in tensors.items() if name in self.outputs}), last=last)

    def send(self, response: Any = None, *, last: bool) -> None:
        """Send a response without outputs, such as an error; with last and none, only say that there are no more."""
        import triton_python_backend_utils as pb_utils

        with self._lock:
            if not last:
                self._sender.send(response)
                return
            self._done = True
            arguments = () if response is None else (response,)
            self._sender.send(*arguments, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    @property
    def is_settled(self) -> bool:
        """Whether there is nothing left to ask: the last response was sent, or Triton has said that the client left."""
        return self._done or self._gone

    def is_gone(self) -> bool:
        """Whether the client left before its last response."""
        with self._lock:
            self._gone = self._gone or (not self._done and bool(self._sender.is_cancelled()))
            return self._gone


class CallResponses:
    """Keeps responses of calls to other models for as long as Triton knows of them. Used from one thread.

    Triton forgets a call in a thread of its own, which frees what nobody else holds, arrays of numpy included, without
    Python's lock: that corrupts the memory of the process. So ours must be the last hold on a response. The thread
    works off a queue in which a call's end stands before any question that is asked later, so the answer to such a
    question shows that it is through with all responses that were kept before."""

    def __init__(self) -> None:
        self._kept: list[Any] = []

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, responses: Any) -> None:
        """Responses of a call that has ended."""
        self._kept.append(responses)

    def is_gone(self, client: Client) -> bool:
        """Ask whether a client has left; if Triton was asked, drop what was kept before."""
        if client.is_settled:
            return client.is_gone()
        before, self._kept = self._kept, []
        gone = client.is_gone()
        before.clear()
        return gone


def hide_torch() -> None:
    """Keep transformers from importing torch in a process that only tokenises: it would take 200 MB and seconds."""
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # None is how Python marks what must not be imported


def tensors_of(request: Any) -> dict[str, Array]:
    """Input tensors of a request by name."""
    return {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}


def outputs_of_call(responses: Iterable[Any]) -> Tensors:
    """Output tensors of the responses to a call of ours. Raises RequestError if the model refused it, BusyError if it
    was too busy."""
    found: dict[str, Array] = {}
    for response in responses:
        if response.has_error():
            raise request_error(response.error())
        # A response without outputs only says that it is the last. Copies, as the memory is the response's.
        found |= {tensor.name(): tensor.as_numpy().copy() for tensor in response.output_tensors()}
    if not found:  # every answer has outputs: at times Triton loses the error with which its full queue refused
        raise BusyError("busy: the model gave no answer; send the request again later")
    return found


def response_of(tensors: Mapping[str, Array]) -> Any:
    import triton_python_backend_utils as pb_utils

    return pb_utils.InferenceResponse([pb_utils.Tensor(name, value) for name, value in tensors.items()])


def error_response(error: Exception) -> Any:
    """An error for the client, with the code by which it can tell what to do: send again later (UNAVAILABLE, 503), send
    something else (INVALID_ARG, 400), or tell us (INTERNAL, 500)."""
    import triton_python_backend_utils as pb_utils

    kind = pb_utils.TritonError
    code = kind.UNAVAILABLE if isinstance(error, BusyError) else kind.INVALID_ARG
    if not isinstance(error, UserError):
        return pb_utils.InferenceResponse(error=kind(f"internal error: {error!r}", kind.INTERNAL))
    return pb_utils.InferenceResponse(error=kind(str(error), code))


def request_error(error: Any) -> RequestError:
    """The error of a response to a call of ours, without what Triton and TensorRT-LLM write in front of it."""
    import triton_python_backend_utils as pb_utils

    sentence = error.message()
    for prefix in ("Error when running inference: ", "due to the following error: "):
        sentence = sentence.rpartition(prefix)[2]
    busy = error.code() == pb_utils.TritonError.UNAVAILABLE or _QUEUE_IS_FULL in sentence
    return BusyError(sentence) if busy else RequestError(sentence)
