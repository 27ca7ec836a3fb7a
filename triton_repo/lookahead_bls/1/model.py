"""Triton model `lookahead_bls`: text in, text out, drafts from the trie; many requests at once in one event loop."""

from __future__ import annotations

import asyncio
import json
import threading
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from pipeline.engine.tensorrt_llm.instance import LOOKAHEAD_MODEL, TARGET_MODEL
from pipeline.errors import UserError
from pipeline.triton_models.bls import load_bls
from pipeline.triton_models.gate import Gate
from pipeline.triton_models.metrics import Metrics
from pipeline.triton_models.target import REQUIRED_OUTPUTS
from pipeline.triton_models.tensors import Array, Tensors
from pipeline.triton_models.triton import (
    CallResponses,
    Client,
    error_response,
    hide_torch,
    outputs_of_call,
    parameter,
    tensors_of,
)

# How often running requests are asked whether their clients are still there.
CANCELLATION_CHECK_S = 0.1


class TritonTarget:
    """A model such as `tensorrt_llm` of this server, as a `pipeline.triton_models.target.Target`."""

    def __init__(self, model: str, kept: CallResponses) -> None:
        self._model = model
        self._kept = kept

    async def call(self, tensors: Mapping[str, Array], outputs: Sequence[str], request_id: str) -> Tensors:
        call = asyncio.ensure_future(self._responses(tensors, outputs, request_id))
        try:
            responses = await asyncio.shield(call)
        except asyncio.CancelledError:
            await self._cancel(request_id)
            await call
            raise
        return outputs_of_call(responses)

    async def _cancel(self, request_id: str) -> None:
        one = np.ones((1, 1), np.int32)
        tensors = {"input_ids": one, "input_lengths": one, "request_output_len": one, "stop": np.asarray([[True]])}
        await self._responses(tensors, REQUIRED_OUTPUTS, request_id)

    async def _responses(self, tensors: Mapping[str, Array], outputs: Sequence[str], request_id: str) -> list[Any]:
        """All responses to one request. Waiting for them blocks a thread, not the event loop."""
        call = await self._request(tensors, outputs, request_id).async_exec(decoupled=True)
        responses = await asyncio.get_running_loop().run_in_executor(None, list, call)
        self._kept.keep(responses)
        return responses

    def _request(self, tensors: Mapping[str, Array], outputs: Sequence[str], request_id: str) -> Any:
        return pb_utils.InferenceRequest(
            model_name=self._model,
            request_id=request_id,
            requested_output_names=list(outputs),
            inputs=[pb_utils.Tensor(name, value) for name, value in tensors.items()],
        )


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        hide_torch()
        config = json.loads(args["model_config"])
        self._kept = CallResponses()
        targets = {
            name: TritonTarget(model, self._kept)
            for name in (TARGET_MODEL, LOOKAHEAD_MODEL)
            if (model := parameter(config, f"{name}_model_name", default=""))
        }
        self._bls = load_bls(
            Path(parameter(config, "artifact_dir")),
            int(parameter(config, "vocab_size")),
            targets,
            parameter(config, "exclude_input_in_output") == "true",
        )
        self._gate = Gate(Path(args["model_repository"]).parent)
        self._metrics = Metrics(pb_utils)
        self._tasks: dict[asyncio.Task[None], Client] = {}
        self._watch: asyncio.Task[None] | None = None
        # A loop of our own, as a model that is not decoupled must be back from `execute` before it is called again.
        self._loop = asyncio.new_event_loop()
        # As many calls as there are requests at once, and one cancellation for each.
        self._loop.set_default_executor(ThreadPoolExecutor(2 * int(config["max_batch_size"]), "target"))
        self._thread = threading.Thread(target=self._loop.run_forever, name="requests", daemon=True)
        self._thread.start()

    def execute(self, requests: list[Any]) -> None:
        """Serve requests side by side; Triton calls again for others meanwhile."""
        for request in requests:
            # Copies, as the request's memory is Triton's again once this method is left.
            tensors = {name: value.copy() for name, value in tensors_of(request).items()}
            self._loop.call_soon_threadsafe(self._begin, tensors, Client(request))

    def finalize(self) -> None:
        """Triton waits for all responses before it calls this."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._metrics.close()

    def _begin(self, tensors: Tensors, client: Client) -> None:
        task = self._loop.create_task(self._serve(tensors, client))
        self._tasks[task] = client
        task.add_done_callback(lambda ended: self._tasks.pop(ended, None))
        if self._watch is None or self._watch.done():
            self._watch = self._loop.create_task(self._watch_clients())

    async def _serve(self, tensors: Tensors, client: Client) -> None:
        try:
            with self._gate.admitted():
                async with aclosing(self._bls.answer(tensors, self._metrics.record)) as answers:
                    async for answer in answers:
                        if answer.last:
                            self._kept.is_gone(client)  # asked for what it lets go; the answer is ready in any case
                        client.answer(answer.tensors, last=answer.last)
        except UserError as error:
            client.send(error_response(error), last=True)
        except asyncio.CancelledError:
            client.answer({}, last=True)
        except Exception as error:  # a fault of ours ends this request, not the server
            pb_utils.Logger.log_error(f"lookahead_bls failed: {traceback.format_exc()}")
            client.send(error_response(error), last=True)

    async def _watch_clients(self) -> None:
        """Cancel the requests of clients that are gone, as long as there are requests."""
        while self._tasks:
            await asyncio.sleep(CANCELLATION_CHECK_S)
            for task, client in list(self._tasks.items()):
                if not task.done() and self._kept.is_gone(client):
                    self._tasks.pop(task, None)
                    task.cancel()
