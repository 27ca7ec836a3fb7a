"""Stand-ins for a request of Triton's Python backend, and for the module of the backend."""

from __future__ import annotations

import queue
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import numpy as np

FINAL = 1


class Request:
    """What `execute` gets. tensors: arrays, or values of tensors with one element. answers: responses as (tensors by
    name or error, last). memory: the inputs as Triton owns them, which it reuses when `execute` has returned."""

    def __init__(
        self, request_id: str = "", gone: bool = False, outputs: Collection[str] = ("text",), **tensors: Any
    ) -> None:
        self.answers: queue.Queue[tuple[Any, bool]] = queue.Queue()
        self.gone = gone
        self.memory = {
            name: value if isinstance(value, np.ndarray) else np.asarray([[value]]) for name, value in tensors.items()
        }
        self._id, self._outputs = request_id, set(outputs)

    def request_id(self) -> str:
        return self._id

    def inputs(self) -> list[Any]:
        return [SimpleNamespace(name=lambda n=n: n, as_numpy=lambda v=v: v) for n, v in self.memory.items()]

    def requested_output_names(self) -> set[str]:
        return self._outputs

    def get_response_sender(self) -> Any:
        return SimpleNamespace(
            send=lambda response=None, flags=0: self.answers.put((response, flags == FINAL)),
            is_cancelled=lambda: self.gone,
        )


def backend_module() -> SimpleNamespace:
    """`triton_python_backend_utils`, whose responses are dictionaries, and errors pairs of sentence and code."""
    codes = {"UNAVAILABLE": "busy", "INVALID_ARG": "invalid", "INTERNAL": "internal"}
    return SimpleNamespace(
        TRITONSERVER_RESPONSE_COMPLETE_FINAL=FINAL,
        Tensor=lambda name, value: (name, value),
        InferenceResponse=lambda tensors=(), error=None: error or dict(tensors),
        TritonError=type("TritonError", (tuple,), {"__new__": lambda cls, *a: tuple(a), **codes}),
        Logger=SimpleNamespace(log_error=lambda text: None),
    )
