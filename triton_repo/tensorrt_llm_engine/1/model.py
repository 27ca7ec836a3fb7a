"""Triton model `tensorrt_llm_engine`: an engine in Python, with one scheduler for all requests."""

from __future__ import annotations

import itertools
import json
import threading
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import triton_python_backend_utils as pb_utils

from pipeline.backends.tensorrt_llm.strict import require_outputs, strict_call, strict_engine, strict_profile
from pipeline.config.folders import folders
from pipeline.config.loading import RESOLVED
from pipeline.config.resolution import load_resolved
from pipeline.config.schema import kinds_on
from pipeline.decoding.request import GenerationRequest, as_token_ids
from pipeline.decoding.sources.base import DraftBudget
from pipeline.engine.artifact import load_artifact
from pipeline.engine.backend import backend_of
from pipeline.engine.pass_watch import CHECK_PERIOD_S, PassWatch
from pipeline.engine.scheduler_factory import create_scheduler
from pipeline.engine.submission import StepEvent, Submission
from pipeline.engine.traits import Mode
from pipeline.errors import RequestError, UserError
from pipeline.triton_models.engine_calls import engine_call, rows_of
from pipeline.triton_models.engine_responses import EngineCall
from pipeline.triton_models.learned_state_store import LearnedStateStore
from pipeline.triton_models.metrics import EngineMetrics
from pipeline.triton_models.python_backend import ResponseSender, drop_requests, error_response, parameter, tensors_of
from pipeline.triton_models.request_spans import pass_spans
from pipeline.triton_models.sequences import num_sequences, sequence_of
from pipeline.triton_models.spans import tracer_of
from pipeline.triton_models.tensors import Tensors, flag


@dataclass(slots=True)
class _Request:
    """An unfinished request. request_id: from the client, not unique. rows: scheduler's ids of the unfinished rows.
    is_abandoned: it was stopped, or its client has disconnected."""

    request_id: str
    client: ResponseSender
    rows: set[str]
    is_abandoned: bool = False


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        folder = Path(parameter(config, "artifact_dir"))
        resolved = load_resolved(Path(args["model_repository"]).parent / RESOLVED)
        artifact = load_artifact(folder, folders().cache, resolved=resolved)
        drafting = resolved.profile.drafting
        self._strategy = drafting.strategy
        self._budget = DraftBudget(drafting.max_draft_tokens, drafting.max_draft_len)
        mode = parameter(config, "strict_tensorrt_llm", default="no")
        if mode != "no":
            artifact = replace(artifact, resolved=strict_profile(resolved))
        self._engine = backend_of(artifact.resolved.backend).load_engine(artifact)
        self._scheduler = create_scheduler(artifact, self._engine, kinds_on("engine"))
        vocab_size = self._engine.limits.vocab_size
        self._strict = None if mode == "no" else strict_engine(artifact.resolved, cast(Mode, mode), vocab_size)
        # Warm-up: the first request compiles and packs.
        warmup = GenerationRequest("warmup", as_token_ids([0, 1, 2, 3]), max_new_tokens=4)
        self._scheduler.run([Submission(warmup, "auto")])
        instance = args["model_instance_name"]
        drafter = self._scheduler.drafter
        self._learned = LearnedStateStore(drafter, drafting, folder, folders().cache, "engine", instance)
        self._passes = PassWatch(self._scheduler, artifact.resolved.profile.server.gateway.request_timeout_s)
        self._scheduler.start()
        self._keys = itertools.count()
        self._requests: dict[int, _Request] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        period_s = int(parameter(config, "cancellation_check_period_ms")) / 1000
        self._metrics = EngineMetrics(pb_utils)
        self._tracer = tracer_of("lookahead-engine")
        self._num_abandoned = 0
        self._watch = threading.Thread(target=self._watch_clients, args=(period_s,), name="cancellation", daemon=True)
        self._watch.start()

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            self._accept(request)

    def finalize(self) -> None:
        self._closing.set()
        self._watch.join()
        self._metrics.close()
        self._scheduler.close()
        self._learned.save()
        if self._tracer is not None:
            self._tracer.close()
        drop_requests()

    def _accept(self, request: Any) -> None:
        client = ResponseSender(request)
        key = next(self._keys)
        try:
            tensors, request_id = tensors_of(request), request.request_id()
            if flag(tensors, "stop"):
                self._stop(request_id)
                client.answer({}, last=True)
                return
            if self._strict is not None:
                require_outputs(client.outputs)
            calls = self._calls(tensors, key)
            rows = {call.submission.request.request_id for call in calls}
            with self._lock:
                self._requests[key] = _Request(request_id, client, rows)
            for call in calls:
                self._scheduler.submit(call.submission, partial(self._answer, call, key))
        except UserError as error:
            self._end(key, client, error)
        except Exception as error:  # a bug fails this request, not the server
            pb_utils.Logger.log_error(f"a request could not be accepted: {error!r}")
            self._end(key, client, error)

    def _calls(self, tensors: Tensors, key: int) -> list[EngineCall]:
        """A call for each row and each of its outputs; in strict mode a row has one output."""
        calls, rows = list[EngineCall](), rows_of(tensors)
        for index, row in enumerate(rows):
            for sequence in range(1 if self._strict is not None else num_sequences(row)):
                call = self._call(row, sequence, f"{key}.{index}.{sequence}")
                call.row, call.num_rows, call.sequence = index, len(rows), sequence
                calls.append(call)
        return calls

    def _call(self, row: Tensors, sequence: int, row_id: str) -> EngineCall:
        if self._strict is not None:
            return strict_call(row, row_id, self._strict)
        call = engine_call(sequence_of(row, sequence), row_id, self._strategy, self._budget)
        if self._tracer is not None:
            call.spans = pass_spans(row)
        return call

    def _stop(self, request_id: str) -> None:
        if not request_id:
            raise RequestError("stop is true and the request has no id; send it with the id of the request to stop")
        for request in self._unfinished():
            if request.request_id == request_id:
                self._abandon(request)

    def _end(self, key: int, client: ResponseSender, error: Exception) -> None:
        with self._lock:
            request = self._requests.pop(key, None)
        if request is not None:  # other rows may still run
            self._cancel(request)
        client.send(error_response(error), last=True)

    def _answer(self, call: EngineCall, key: int, event: StepEvent) -> None:
        with self._lock:
            request = self._requests.get(key)
            if request is None:
                return  # refused because of another row
            if event.done:
                request.rows.discard(event.request_id)
            last = not request.rows
            if last:
                del self._requests[key]
        if self._tracer is not None and call.spans is not None and event.token_ids:
            self._tracer.record(call.spans.span(event, self._scheduler.pass_started))
        if event.error is not None:
            request.client.send(error_response(event.error), last=last)
            return
        try:
            if (tensors := call.response(event)) is not None:
                request.client.answer(tensors, last=last)
        except Exception as error:  # a bug fails this request, so that its client does not wait forever
            pb_utils.Logger.log_error(f"a response could not be made: {error!r}")
            self._end(key, request.client, error)

    def _unfinished(self) -> list[_Request]:
        with self._lock:
            return list(self._requests.values())

    def _cancel(self, request: _Request) -> None:
        for row_id in list(request.rows):
            self._scheduler.cancel(row_id)

    def _abandon(self, request: _Request) -> None:
        """Cancel a request that was stopped or whose client has disconnected."""
        self._num_abandoned += not request.is_abandoned
        request.is_abandoned = True
        self._cancel(request)

    def _watch_clients(self, period_s: float) -> None:
        """Until the model closes: cancel requests of disconnected clients, record metrics, save the learned state, and
        detect a step that never ends."""
        entered = time.monotonic()
        while not self._closing.wait(period_s):
            if time.monotonic() - entered > CHECK_PERIOD_S:
                entered = time.monotonic()
                self._passes.check()
                self._metrics.record(self._engine.reuse, self._num_abandoned)
                # The scheduler runs meanwhile. Tables have no pointers, so a mixture of two steps is harmless.
                self._learned.save_if_due()
            for request in self._unfinished():
                if request.client.is_gone():
                    self._abandon(request)
