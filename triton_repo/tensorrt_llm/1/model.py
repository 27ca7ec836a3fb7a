"""Triton model `tensorrt_llm` over the torch engine: tensors in, one scheduler for all requests, tensors out."""

from __future__ import annotations

import itertools
import json
import os
import threading
from pathlib import Path
from typing import Any

import torch
import triton_python_backend_utils as pb_utils

from pipeline.config.places import places
from pipeline.decoding.create import ENGINE_KINDS
from pipeline.decoding.request import GenerationRequest, as_token_ids
from pipeline.decoding.sources.base import DraftBudget
from pipeline.engine.artifact import load_artifact
from pipeline.engine.submission import StepEvent, Submission
from pipeline.engine.torch.load import create_scheduler
from pipeline.errors import UserError
from pipeline.serving.engine_calls import EngineCall, engine_call
from pipeline.serving.tensors import flag
from pipeline.serving.triton import Client, error_response, parameter, response_of, tensors_of


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        artifact = load_artifact(Path(parameter(config, "artifact_dir")), places().cache)
        drafting = artifact.resolved.profile.drafting
        self._strategy = drafting.strategy
        self._budget = DraftBudget(drafting.max_draft_tokens, drafting.max_draft_len)
        self._exclude_input = parameter(config, "exclude_input_in_output") == "true"
        self._scheduler = create_scheduler(artifact, ENGINE_KINDS)
        # Compiles and packs what is compiled and packed on first use, before a client has to wait for it.
        warmup = GenerationRequest("warmup", as_token_ids([0, 1, 2, 3]), max_new_tokens=4)
        self._scheduler.run([Submission(warmup, "auto")])
        self._scheduler.start()
        self._keys = itertools.count()
        # Unfinished requests: id and client by a key of ours, as clients may use an id twice.
        self._clients: dict[int, tuple[str, Client]] = {}
        self._closing = threading.Event()
        period_s = int(parameter(config, "cancellation_check_period_ms")) / 1000
        self._watch = threading.Thread(target=self._watch_clients, args=(period_s,), name="cancellation", daemon=True)
        self._watch.start()

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            self._accept(request)

    def finalize(self) -> None:
        self._closing.set()
        self._watch.join()
        self._scheduler.close()

    def _accept(self, request: Any) -> None:
        client = Client(request)
        key = next(self._keys)
        try:
            tensors = tensors_of(request)
            request_id = request.request_id() or f"unnamed-{key}"
            if flag(tensors, "stop"):
                self._scheduler.cancel(request_id)
                client.send(last=True)
                return
            call = engine_call(tensors, request_id, self._strategy, self._budget, self._exclude_input)
            self._clients[key] = request_id, client
            self._scheduler.submit(call.submission, lambda event: self._answer(call, key, event))
        except UserError as error:
            self._end(key, client, str(error))
        except Exception as error:  # a fault of ours ends this request, not the server
            pb_utils.Logger.log_error(f"request could not be taken: {error!r}")
            self._end(key, client, f"internal error: {error!r}")

    def _end(self, key: int, client: Client, sentence: str) -> None:
        self._clients.pop(key, None)
        client.send(error_response(sentence), last=True)

    def _answer(self, call: EngineCall, key: int, event: StepEvent) -> None:
        _, client = self._clients.pop(key) if event.done else self._clients[key]
        if event.error is not None:
            known = isinstance(event.error, UserError)
            response = error_response(str(event.error) if known else f"internal error: {event.error!r}")
        else:
            tensors = call.response(event)
            response = None if tensors is None else response_of(tensors)
        if response is not None:
            client.send(response, last=event.done)

    def _watch_clients(self, period_s: float) -> None:
        """Cancel the requests of clients that are gone."""
        while not self._closing.wait(period_s):
            for request_id, client in list(self._clients.values()):
                if client.is_gone():
                    self._scheduler.cancel(request_id)
