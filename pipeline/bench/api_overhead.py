"""Latency of the servers in front of Triton: time to first token through the OpenAI API and the gateway, compared with
Triton itself. Requests to the three endpoints alternate, so that a busy machine affects all alike."""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np

from pipeline.errors import ServerError
from pipeline.gateway.spec import TRITON_KEY_HEADER
from pipeline.repository.names import FRONT_MODEL
from pipeline.server.client import key_headers
from pipeline.server.state import ServerState

TRITON, GATEWAY, OPENAI = "Triton", "gateway", "OpenAI API"
_TIMEOUT_S = 60.0
# More than one, because the first tokens may be parts of a character, which is sent once it is complete.
_MAX_TOKENS = 8
_NUM_WORDS = 24
_WORDS = ("river", "stone", "lamp", "seven", "green", "walks", "under", "paper", "north", "slow")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server to measure. text_of: returns the new text in an event of its stream."""

    name: str
    url: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]
    prompt_field: str
    text_of: Callable[[Mapping[str, Any]], str]


def endpoints_of(state: ServerState, openai_url: str | None) -> list[Endpoint]:
    """The endpoints of a running server, Triton itself first. openai_url: base URL of its OpenAI API, if any."""
    path = f"/v2/models/{FRONT_MODEL}/generate_stream"
    body = {"max_tokens": _MAX_TOKENS, "stream": True, "strategy": "none", "temperature": 0.0}
    triton = f"http://{state.triton.http}{path}"
    key = {TRITON_KEY_HEADER: state.triton.key} if state.triton.key else {}
    endpoints = [Endpoint(TRITON, triton, key, body, "text_input", _triton_text)]
    if state.triton.key:
        endpoints.append(Endpoint(GATEWAY, f"{state.http_url}{path}", key_headers(), body, "text_input", _triton_text))
    if openai_url is not None:
        named = {**body, "model": state.model}
        endpoints.append(Endpoint(OPENAI, f"{openai_url}/completions", key_headers(), named, "prompt", _openai_text))
    return endpoints


def times_to_first_token(
    endpoints: list[Endpoint], num_requests: int, step: Callable[[str], None] = lambda name: None
) -> dict[str, list[float]]:
    """Times in milliseconds by the endpoint's name. The first request to each is a warm-up; responses without text do
    not count. Raises ServerError if a request fails, or if no response of an endpoint has text."""
    words = random.Random(0)
    times: dict[str, list[float]] = {endpoint.name: [] for endpoint in endpoints}
    with httpx.Client(timeout=_TIMEOUT_S, trust_env=False) as client:
        for number in range(-1, num_requests):
            turn = number % len(endpoints)
            for endpoint in (*endpoints[turn:], *endpoints[:turn]):
                # Prompts have different beginnings, so none reuses the KV cache of another.
                prompt = f"{words.randrange(10**6)} " + " ".join(words.choices(_WORDS, k=_NUM_WORDS))
                elapsed_ms = _first_token_ms(client, endpoint, prompt)
                if number >= 0:
                    step(endpoint.name)
                    if elapsed_ms is not None:
                        times[endpoint.name].append(elapsed_ms)
    for endpoint in endpoints:
        if not times[endpoint.name]:
            raise ServerError(f"{endpoint.url} returned no text.")
    return times


def cost_of(times: Mapping[str, list[float]]) -> dict[str, dict[str, float]]:
    """Median, 90th percentile, and difference of the median from Triton's, in milliseconds, for each endpoint."""
    base = statistics.median(times[TRITON])
    return {
        name: {
            "median_ms": statistics.median(values),
            "p90_ms": float(np.percentile(values, 90)),
            "added_ms": statistics.median(values) - base,
        }
        for name, values in times.items()
    }


def _first_token_ms(client: httpx.Client, endpoint: Endpoint, prompt: str) -> float | None:
    """Time to first token; None without text, because a small model may emit parts of characters or end at once."""
    started = time.perf_counter()
    elapsed_ms = None
    try:
        body = {**endpoint.body, endpoint.prompt_field: prompt}
        with client.stream("POST", endpoint.url, json=body, headers=endpoint.headers) as answer:
            if answer.status_code != 200:
                raise ServerError(f"{endpoint.url} returned status {answer.status_code}: {answer.read()[:200]!r}")
            for line in answer.iter_lines():
                data = line.removeprefix("data:").strip()
                event = json.loads(data) if elapsed_ms is None and data.startswith("{") else {}
                if "error" in event:
                    raise ServerError(f"{endpoint.url} refused the request: {event['error']}")
                if event and endpoint.text_of(event):
                    elapsed_ms = 1000 * (time.perf_counter() - started)
    except httpx.HTTPError as error:
        raise ServerError(
            f"{endpoint.url} cannot be reached: {error!r}. Is it running? See `lookahead status`."
        ) from error
    return elapsed_ms


def _triton_text(event: Mapping[str, Any]) -> str:
    return str(event.get("text_output", ""))


def _openai_text(event: Mapping[str, Any]) -> str:
    return "".join(choice.get("text") or "" for choice in event.get("choices", []))
