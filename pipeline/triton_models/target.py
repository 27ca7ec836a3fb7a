"""The served model that the BLS loop calls."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Protocol

from pipeline.triton_models.tensors import Array, Tensors


class Target(Protocol):
    """A model such as `tensorrt_llm`, called from the BLS model. `call` and `stream` raise RequestError with the
    target's words if it refuses the request, BusyError if it is too busy."""

    def connect(self) -> None:
        """Get ready for `stream`. Raises ServerError if the server has no interface for it."""

    async def call(self, tensors: Mapping[str, Array], outputs: Sequence[str], request_id: str) -> Tensors:
        """The response to one request; cancelling it cancels the request."""

    def stream(
        self, tensors: Mapping[str, Array], outputs: Sequence[str], request_id: str
    ) -> AsyncGenerator[Tensors, None]:
        """The responses to one request, each as it comes; closing the generator early cancels the request."""
