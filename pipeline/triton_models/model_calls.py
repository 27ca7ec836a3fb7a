"""Calls from one Triton model to another of the same server, with one response each."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.triton_models.tensors import Array, Tensors
from pipeline.triton_models.triton import CallResponses, outputs_of_call


class ModelCaller:
    """Calls the model `model`, which must be decoupled, from the event loop of a `RequestLoop`.

    stop: inputs of a request that ends the one with the same id, of the shapes that the model takes. kept: see
    `CallResponses`.

    One response per call, never a stream: the Python backend corrupts its memory, or deadlocks, when several threads
    read streams of other models (docs/decisions/010)."""

    def __init__(self, model: str, stop: Mapping[str, Array], kept: CallResponses) -> None:
        self._model = model
        self._stop = stop
        self._kept = kept

    async def call(self, tensors: Mapping[str, Array], outputs: Sequence[str], request_id: str) -> Tensors:
        """Outputs of one request; cancelling it stops the request. Raises RequestError if the model refuses it,
        BusyError if the model is too busy, EngineError if it is gone."""
        call = self._begun(tensors, outputs, request_id)
        try:
            responses = await asyncio.shield(call)
        except asyncio.CancelledError:
            await self.stop(outputs, request_id)
            self._kept.keep(await call)
            raise
        self._kept.keep(responses)
        return outputs_of_call(responses)

    async def stop(self, outputs: Sequence[str], request_id: str) -> None:
        self._kept.keep(await self._begun(self._stop, outputs, request_id))

    def _begun(
        self, tensors: Mapping[str, Array], outputs: Sequence[str], request_id: str
    ) -> asyncio.Future[list[Any]]:
        """All responses to a request. One thread sends it at once, before other tasks of the event loop run, and waits
        for them: the called model works while they do."""
        import triton_python_backend_utils as pb_utils

        request = pb_utils.InferenceRequest(
            model_name=self._model,
            request_id=request_id,
            requested_output_names=list(outputs),
            inputs=[pb_utils.Tensor(name, value) for name, value in tensors.items()],
        )
        return asyncio.get_running_loop().run_in_executor(None, lambda: list(request.exec(decoupled=True)))
