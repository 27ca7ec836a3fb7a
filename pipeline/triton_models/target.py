"""The served model that the BLS loop calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from pipeline.triton_models.tensors import Array, Tensors


class Target(Protocol):
    """A model such as `tensorrt_llm`, called from the BLS model."""

    async def call(self, tensors: Mapping[str, Array], outputs: Sequence[str], request_id: str) -> Tensors:
        """The response to one request; cancelling it cancels the request. Raises RequestError with the target's words
        if it refuses.

        One response, never a stream: Triton's Python backend corrupts its memory, or comes to a standstill, when
        several threads of a model read streams of other models (docs/decisions/010)."""
