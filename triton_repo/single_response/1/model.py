"""Triton models `tensorrt_llm` and `tensorrt_llm_bls`: forward requests to a decoupled model and send one response."""

from __future__ import annotations

import itertools
import json
from typing import Any

from pipeline.triton_models.model_calls import ModelCaller
from pipeline.triton_models.python_backend import CallResponses, parameter
from pipeline.triton_models.request_loop import IncomingRequest, RequestLoop
from pipeline.triton_models.single_response import WORKING_MODELS, forwarded


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        self._model = WORKING_MODELS[parameter(config, "model_name")]
        self._kept = CallResponses()
        self._caller = ModelCaller(self._model.name, self._model.stop, self._kept)
        # Ids of forwarded requests. Clients' ids are not unique.
        self._ids = (f"{args['model_instance_name']}-{number}" for number in itertools.count())
        # Per running or waiting request: its call, and one that stops it.
        self._loop = RequestLoop(self._serve, self._kept, 2 * int(parameter(config, "max_requests")))

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            self._loop.submit(request)

    def finalize(self) -> None:
        self._loop.close()

    async def _serve(self, incoming: IncomingRequest) -> None:
        client = incoming.client
        tensors = forwarded(incoming.tensors, self._model)
        answer = await self._caller.call(tensors, sorted(client.outputs | self._model.outputs), next(self._ids))
        self._kept.is_gone(client)  # only to release kept responses; the result does not matter
        client.answer(answer, last=True)
