"""Generation through a running server: the model `lookahead_bls` over gRPC, streamed, as a client would call it."""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import json
import socket
import time
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from tritonclient.grpc import InferInput, InferRequestedOutput
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException

from pipeline.bench.contender import Generation
from pipeline.bench.workload import Prompt, conversation_of
from pipeline.decoding.request import GenerationRequest, SamplingParams
from pipeline.errors import RequestError, ServerError

T = TypeVar("T")
MODEL_NAME = "lookahead_bls"
_namespace_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Ask:
    """One request to the server."""

    prompt: Prompt
    max_new_tokens: int
    strategy: str | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came. arrivals_s: when each part of the text came, from the moment of asking. statistics: the server's own
    counts, with the token ids."""

    text: str
    arrivals_s: tuple[float, ...]
    seconds: float
    finish_reason: str | None
    statistics: dict[str, Any]


class RemoteModel:
    """A connection, to be used within one event loop."""

    def __init__(self, client: InferenceServerClient, batched: bool) -> None:
        self._client = client
        # A model with batching takes and gives tensors with a batch dimension.
        self._shape = (1, 1) if batched else (1,)

    @classmethod
    async def connect(cls, address: str, model_name: str = MODEL_NAME) -> RemoteModel:
        """address: host:port of the server's gRPC endpoint. Raises ServerError if it is not ready."""
        client = InferenceServerClient(address)
        try:
            if not await client.is_model_ready(model_name, client_timeout=10):
                raise ServerError(f"The server at {address} does not serve {model_name}; see `lookahead status`.")
            config = await client.get_model_config(model_name, as_json=True, client_timeout=10)
        except InferenceServerException as error:
            await client.close()
            raise ServerError(
                f"No server answers at {address} ({error.message()}); start one with `lookahead serve`, "
                "or give its gRPC address with --url host:port."
            ) from error
        return cls(client, int(config["config"].get("max_batch_size", 0)) > 0)

    async def close(self) -> None:
        await self._client.close()

    async def generate(self, ask: Ask) -> Answer:
        """The whole answer of one streamed request. Raises RequestError with the server's sentence."""
        started = time.perf_counter()
        parts: list[str] = []
        arrivals: list[float] = []
        finish_reason: str | None = None
        statistics: dict[str, Any] = {}

        async def requests() -> AsyncIterator[dict[str, Any]]:
            names = ("text_output", "finish_reason", "statistics")
            yield {
                "model_name": MODEL_NAME,
                "inputs": self._inputs(ask),
                "outputs": [InferRequestedOutput(name) for name in names],
            }

        try:
            async for result, error in self._client.stream_infer(requests()):
                if error is not None:
                    raise RequestError(error.message())
                text = _text(result, "text_output")
                if text:
                    parts.append(text)
                    arrivals.append(time.perf_counter() - started)
                finish_reason = _text(result, "finish_reason") or finish_reason
                counted = _text(result, "statistics")
                if counted:
                    statistics = json.loads(counted)
        except InferenceServerException as error:
            raise ServerError(f"The server broke off: {error.message()}") from error
        return Answer("".join(parts), tuple(arrivals), time.perf_counter() - started, finish_reason, statistics)

    def _inputs(self, ask: Ask) -> list[InferInput]:
        inputs = [
            self._input("max_tokens", ask.max_new_tokens, np.int32),
            self._input("stream", True, np.bool_),
            self._input("exclude_input_in_output", True, np.bool_),
            self._input("return_statistics", True, np.bool_),
            self._input("seed", ask.sampling.seed, np.uint64),
            self._input("namespace", ask.namespace, np.object_),
        ]
        if ask.prompt.raw:
            inputs.append(self._input("text_input", "".join(ask.prompt.messages), np.object_))
        else:
            inputs.append(self._input("text_input", ask.prompt.messages[-1], np.object_))
            inputs.append(self._input("use_chat_template", True, np.bool_))
            if len(ask.prompt.messages) > 1:
                inputs.append(self._input("messages", json.dumps(conversation_of(ask.prompt)), np.object_))
        if ask.strategy is not None:
            inputs.append(self._input("strategy", ask.strategy, np.object_))
        if not ask.sampling.greedy:
            inputs.append(self._input("temperature", ask.sampling.temperature, np.float32))
        return inputs

    def _input(self, name: str, value: str | float | bool, dtype: Any) -> InferInput:
        types = {np.int32: "INT32", np.bool_: "BOOL", np.uint64: "UINT64", np.float32: "FP32", np.object_: "BYTES"}
        tensor = InferInput(name, self._shape, types[dtype])
        content = value.encode() if isinstance(value, str) else value
        tensor.set_data_from_numpy(np.full(self._shape, content, dtype))
        return tensor


class RemoteContender:
    """One strategy through the server. What was learnt cannot be emptied from outside: instead, forgetting means a
    namespace that nobody has used, in which the server's trie is empty. KV reuse stays as the server has it."""

    def __init__(self, strategy: str, address: str) -> None:
        self.name = strategy
        self._loop = asyncio.new_event_loop()
        self._model = self._wait(RemoteModel.connect(address))
        self.forget()

    def forget(self) -> None:
        self._namespace = fresh_namespace()

    def generate(self, request: GenerationRequest, prompt: Prompt) -> Generation:
        ask = Ask(prompt, request.max_new_tokens, self.name, request.sampling, self._namespace)
        return generation_of_answer(self._wait(self._model.generate(ask)))

    def close(self) -> None:
        self._wait(self._model.close())
        self._loop.close()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)


def fresh_namespace() -> str:
    """A namespace that no other request to any server has used."""
    return f"bench-{time.time_ns():x}-{next(_namespace_numbers)}"


def generation_of_answer(answer: Answer) -> Generation:
    """What the server counted, with times as the client saw them. Raises ServerError if it does not count."""
    counted = answer.statistics
    missing = [name for name in ("output_ids", "num_steps", "num_draft_tokens") if name not in counted]
    if missing:
        raise ServerError(
            f"The server's statistics lack {', '.join(missing)}; "
            f"its {MODEL_NAME} is of another version than this program."
        )
    return Generation(
        output_ids=list(counted["output_ids"]),
        steps=int(counted["num_steps"]),
        draft_tokens=int(counted["num_draft_tokens"]),
        accepted_tokens=int(counted.get("num_accepted_tokens", 0)),
        acceptance_lengths=list(counted.get("acceptance_lengths", [])),
        seconds=answer.seconds,
        ttft_s=answer.arrivals_s[0] if answer.arrivals_s else answer.seconds,
        draft_seconds=float(counted.get("draft_seconds", 0.0)),
        finish_reason=answer.finish_reason,
    )


def require_loopback(address: str) -> None:
    """Raise ServerError unless every address that a host:port stands for is this machine's own."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        raise ServerError(f"The server address {address!r} should be host:port, e.g. 127.0.0.1:8001.")
    try:
        found = {entry[4][0] for entry in socket.getaddrinfo(host.strip("[]"), int(port))}
    except OSError as error:
        raise ServerError(f"The host of {address!r} is not known: {error.strerror}.") from error
    if not all(ipaddress.ip_address(str(entry).partition("%")[0]).is_loopback for entry in found):
        raise ServerError(
            f"{address} is another machine. Load and measurements go to this one unless --allow-remote is given."
        )


def _text(result: Any, name: str) -> str | None:
    """A text output of a response, or None if the response does not carry it."""
    values = result.as_numpy(name)
    if values is None or not values.size:
        return None
    value = values.reshape(-1)[0]
    return value.decode() if isinstance(value, bytes) else str(value)
