"""Calls from one Triton model to another of the same server, with one response each."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.triton_models.python_backend import CallResponses, outputs_of_call
from pipeline.triton_models.tensors import Array, Tensors


class ModelCaller:
    """Calls the decoupled model `model` from the event loop of a `RequestLoop`.

    stop: inputs of a request that stops the request with the same id. kept: see `CallResponses`.

    Calls have one response and no stream, because the Python backend corrupts its memory or deadlocks when several
    threads read streams of other models (docs/decisions/010)."""

    def __init__(self, model: str, stop: Mapping[str, Array], kept: CallResponses) -> None:
        self._model = model
        self._stop = stop
        self._kept = kept

    async def call(self, tensors: Mapping[str, Array], outputs: Sequence[str], request_id: str) -> Tensors:
        """Return the outputs of one request. Cancelling the call stops the request. Raises RequestError if the model
        refuses the request, BusyError if its queue is full, EngineError if its process has ended, RuntimeError for a
        bug in the model."""
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
        """All responses to a request. A thread sends it immediately and waits for the responses, so that the called
        model works while other tasks of the event loop run."""
        import triton_python_backend_utils as pb_utils

        request = pb_utils.InferenceRequest(
            model_name=self._model,
            request_id=request_id,
            requested_output_names=list(outputs),
            inputs=[pb_utils.Tensor(name, value) for name, value in tensors.items()],
        )
        return asyncio.get_running_loop().run_in_executor(None, lambda: list(request.exec(decoupled=True)))
