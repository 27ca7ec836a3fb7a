"""Requests of the failover test, and their outputs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import httpx

from pipeline.errors import ServerError
from pipeline.gateway.bodies import Json
from pipeline.gateway.chunk_aggregation import aggregated

# Time limit of a request. A longer one counts as failed.
REQUEST_TIMEOUT_S = 180.0
PROMPTS = (
    "Count from one to thirty in words.",
    "Write a short story about a lighthouse keeper and a whale.",
    "List the steps of baking bread.",
)
_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 4},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
_STREAM = {"stream": True, "stream_options": {"include_usage": True}}


# Kinds of requests: the fields of an OpenAI request by name.
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "seeded": {"temperature": 1.0, "seed": 7, **_STREAM},
    "penalties": {"temperature": 1.2, "seed": 8, "presence_penalty": 0.7, "frequency_penalty": 0.4},
    "stop word": {"temperature": 0.9, "seed": 9, "min_tokens": 8, "stop": ["\n\n", "the end"]},
    "conversation": {  # all turns go to the same worker while it is alive
        "seed": 11,
        **_STREAM,
        "messages": [
            {"role": "user", "content": "Name a river."},
            {"role": "assistant", "content": "The Rhine."},
            {"role": "user", "content": "Where does it begin?"},
        ],
    },
    "json": {
        "temperature": 0.8,
        "seed": 10,
        "response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": _SCHEMA}},
    },
}


class ClientOutput(NamedTuple):
    """Output of a request, as a client receives it."""

    text: str
    finish_reason: str
    num_prompt_tokens: int
    num_tokens: int


def request_body(model: str, prompt: str, max_tokens: int, kind: str) -> dict[str, Any]:
    """Body of a chat request of this kind. A kind with messages ignores the prompt."""
    return {"model": model, "messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens, **KINDS[kind]}


def ask(client: httpx.Client, url: str, body: Mapping[str, Any]) -> ClientOutput:
    """Send one request. Raises ServerError for anything but a complete response."""
    try:
        response = client.post(f"{url}/chat/completions", json=body)
    except httpx.TimeoutException as error:
        raise ServerError(f"no answer within {REQUEST_TIMEOUT_S:.0f} s") from error
    except httpx.HTTPError as error:
        raise ServerError(f"the OpenAI API cannot be reached: {error!r}") from error
    if response.status_code != 200:
        raise ServerError(f"status {response.status_code}: {response.text[:200]}")
    answer = _joined(response.text) if "stream" in body else response.json()
    choice, usage = answer["choices"][0], answer["usage"]
    return ClientOutput(
        choice["message"]["content"] or "", choice["finish_reason"], usage["prompt_tokens"], usage["completion_tokens"]
    )


def _joined(stream: str) -> Json:
    """The whole response of a stream. Raises ServerError if it is not complete."""
    chunks = [json.loads(line.removeprefix("data: ")) for line in stream.splitlines() if line.startswith("data: {")]
    if errors := [chunk["error"] for chunk in chunks if "error" in chunk]:
        raise ServerError(f"error in a stream: {errors[0]}")
    answer = aggregated(chunks)
    if not answer.get("usage") or not any(choice["finish_reason"] for choice in answer["choices"]):
        raise ServerError("a stream ended early")
    return answer
