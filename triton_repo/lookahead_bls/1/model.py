"""Triton model `lookahead_bls`: text to text with drafts from the trie. One event loop serves all requests."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

from pipeline.config.folders import folders
from pipeline.config.loading import RESOLVED
from pipeline.config.resolution import load_resolved
from pipeline.repository.names import FINGERPRINT, LOOKAHEAD_MODEL, TARGET_MODEL, TARGET_PARAMETERS
from pipeline.triton_models.bls import load_bls
from pipeline.triton_models.drain_lock import DrainLock
from pipeline.triton_models.handover import handover_dir
from pipeline.triton_models.learned_state_store import LearnedStateStore
from pipeline.triton_models.metrics import Metrics
from pipeline.triton_models.python_backend import CallResponses, hide_torch, parameter
from pipeline.triton_models.request_loop import IncomingRequest, RequestLoop
from pipeline.triton_models.request_spans import traced
from pipeline.triton_models.sequences import TextResponse, all_responses
from pipeline.triton_models.sibling_stops import siblings_of
from pipeline.triton_models.single_response import ENGINE_STOP
from pipeline.triton_models.spans import tracer_of
from pipeline.triton_models.stream_calls import StreamingCaller
from pipeline.triton_models.tensors import Tensors


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        hide_torch()
        config = json.loads(args["model_config"])
        self._kept = CallResponses()
        self._targets = {
            name: StreamingCaller(model, ENGINE_STOP, self._kept)
            for name in (TARGET_MODEL, LOOKAHEAD_MODEL)
            if (model := parameter(config, TARGET_PARAMETERS[name], default=""))
        }
        artifact_dir = Path(parameter(config, "artifact_dir"))
        fingerprint, vocab_size = parameter(config, FINGERPRINT), int(parameter(config, "vocab_size"))
        resolved = load_resolved(Path(args["model_repository"]).parent / RESOLVED)
        self._bls = load_bls(artifact_dir, resolved, fingerprint, vocab_size, self._targets)
        drafting, instance = resolved.profile.drafting, args["model_instance_name"]
        self._learned = LearnedStateStore(self._bls.drafter, drafting, artifact_dir, folders().cache, "bls", instance)
        self._drain_lock = DrainLock(handover_dir())
        self._metrics = Metrics(pb_utils, self._bls.gauges)
        self._tracer = tracer_of("lookahead-bls")
        siblings = siblings_of(instance, config, handover_dir())
        # Per running request: its call, and one that stops it.
        self._loop = RequestLoop(self._serve, self._kept, 2 * int(config["max_batch_size"]), siblings)

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            self._loop.submit(request)

    def finalize(self) -> None:
        self._loop.close(*(target.close() for target in self._targets.values()))
        self._learned.save()
        self._metrics.close()
        if self._tracer is not None:
            self._tracer.close()

    async def _serve(self, incoming: IncomingRequest) -> None:
        client = incoming.client
        with self._drain_lock.admitted():
            async with aclosing(all_responses(self._answer, incoming.tensors)) as answers:
                async for answer in answers:
                    if answer.last:
                        self._kept.is_gone(client)  # only to release kept responses; the result does not matter
                    client.answer(answer.tensors, last=answer.last)
        self._learned.save_if_due()

    def _answer(self, tensors: Tensors) -> AsyncGenerator[TextResponse, None]:
        return self._bls.answer(*traced(self._tracer, tensors, self._metrics.record))
