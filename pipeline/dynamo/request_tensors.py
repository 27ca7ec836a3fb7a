"""Converts a request of Dynamo to the input tensors of `lookahead_bls`.

A request that migrates to another worker or server continues with the same output. Its prompt then ends with the tokens
generated so far, and the options that count output tokens (min_tokens, penalties, response format) include them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pipeline.dynamo.spec import WorkerSpec
from pipeline.errors import RequestError
from pipeline.gateway.annotations import (
    ENGINE_DATA,
    GUIDE,
    GUIDE_TYPE,
    MAX_TOKENS,
    NAMESPACE,
    NUM_DRAFT_TOKENS,
    PREDICTION,
    STATISTICS,
    STRATEGY,
    TOOLS,
    integer_option,
    logit_bias_option,
    read_annotations,
    regex_of_choices,
)
from pipeline.triton_models.tensors import Array

# Default temperature of the OpenAI API.
_DEFAULT_TEMPERATURE = 1.0
_SEEDS = 1 << 64
# The front end ends a request at its first finish reason, so only the gateway, which splits requests, supports n.
_ONE_CHOICE = "n must be 1 without the gateway (server.gateway.enabled); send the request again with seed + 1"
_PENALTIES = ("presence_penalty", "frequency_penalty", "repetition_penalty")


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """A converted request. num_prompt_tokens: prompt without resumed tokens. num_resumed_tokens: output tokens at the
    end of input_ids, generated earlier. num_remaining_tokens: limit of tokens still to generate."""

    tensors: dict[str, Array]
    num_prompt_tokens: int
    num_resumed_tokens: int
    num_remaining_tokens: int
    has_prediction: bool
    returns_statistics: bool
    returns_log_probs: bool


def token_request(request: Mapping[str, Any], context_id: str, spec: WorkerSpec) -> TokenRequest:
    """Convert a request. context_id: Dynamo's id of the request, the same on every worker. Raises RequestError if the
    request is invalid."""
    ids: list[int] = request["token_ids"]
    stop, sampling = request.get("stop_conditions") or {}, request.get("sampling_options") or {}
    if sampling.get("n") not in (None, 1):
        raise RequestError(_ONE_CHOICE)
    options = read_annotations(request.get("annotations") or [])
    remaining, resumed = _counts(len(ids), stop.get("max_tokens"), integer_option(options, MAX_TOKENS), spec)
    tensors: dict[str, Array] = {
        "text_input": _text(""),
        "input_ids": np.asarray([ids], np.int32),
        "max_tokens": _int(resumed + remaining),
        "stream": np.asarray([[True]]),
        "return_statistics": np.asarray([[True]]),
        "seed": np.asarray([[_seed(sampling.get("seed"), context_id)]], np.uint64),
    }
    if resumed:
        tensors["num_resumed_tokens"] = _int(resumed)
    if stop.get("min_tokens"):
        tensors["min_tokens"] = _int(stop["min_tokens"])
    if stop.get("stop"):
        # Dynamo stops at these words too, but would show the beginning of a word that spans several tokens.
        tensors["stop_words"] = np.asarray([[word.encode() for word in stop["stop"]]], np.object_)
    if stop.get("ignore_eos"):
        tensors["end_id"] = _int(-1)
    tensors |= _sampling(sampling, len(ids) - resumed, spec)
    for name in (STRATEGY, PREDICTION):
        if options.get(name):
            tensors[name] = _text(options[name])
    namespace = options.get(NAMESPACE) or (request.get("routing") or {}).get("cache_salt")
    if namespace:
        tensors["namespace"] = _text(namespace)
    if (limit := integer_option(options, NUM_DRAFT_TOKENS)) is not None:
        tensors["num_draft_tokens"] = _int(limit)
    if bias := logit_bias_option(options):
        tensors["logit_bias_ids"] = np.asarray([list(bias)], np.int32)
        tensors["logit_bias_values"] = np.asarray([list(bias.values())], np.float32)
    tensors |= _guide(options, sampling.get("guided_decoding"))
    tensors |= _log_probs((request.get("output_options") or {}).get("logprobs"))
    return TokenRequest(
        tensors,
        num_prompt_tokens=len(ids) - resumed,
        num_resumed_tokens=resumed,
        num_remaining_tokens=remaining,
        has_prediction=PREDICTION in tensors,
        returns_statistics=STATISTICS in options,
        returns_log_probs="return_log_probs" in tensors,
    )


def takes_engine_data(request: Mapping[str, Any]) -> bool:
    """Whether the response may contain `engine_data`."""
    extension = (request.get("extra_args") or {}).get("nvext") or {}
    return ENGINE_DATA in (extension.get("extra_fields") or [])


def has_tools(request: Mapping[str, Any]) -> bool:
    """Whether the request has the gateway's annotation of tools."""
    return TOOLS in read_annotations(request.get("annotations") or [])


def resumed(wanted: TokenRequest, token_ids: Sequence[int]) -> TokenRequest:
    """The rest of a request after it has generated token_ids."""
    if not token_ids:
        return wanted
    ids = np.append(wanted.tensors["input_ids"], np.asarray([token_ids], np.int32), axis=1)
    num_resumed = wanted.num_resumed_tokens + len(token_ids)
    return replace(
        wanted,
        tensors={**wanted.tensors, "input_ids": ids, "num_resumed_tokens": _int(num_resumed)},
        num_resumed_tokens=num_resumed,
        num_remaining_tokens=max(0, wanted.num_remaining_tokens - len(token_ids)),
    )


def _counts(num_tokens: int, max_tokens: int | None, of_output: int | None, spec: WorkerSpec) -> tuple[int, int]:
    """Number of tokens still to generate, and of output tokens in the request. of_output: the annotation max_tokens."""
    room = spec.max_seq_len - num_tokens
    if max_tokens is None:
        return max(1, room), 0
    resumed = 0 if of_output is None else of_output - max_tokens
    if not 0 <= resumed < num_tokens:
        raise RequestError(f"the annotation max_tokens is {of_output}, the request's max_tokens {max_tokens}")
    return max_tokens if max_tokens == 0 else max(1, min(max_tokens, room)), resumed


def _sampling(sampling: Mapping[str, Any], num_prompt_tokens: int, spec: WorkerSpec) -> dict[str, Array]:
    temperature = sampling.get("temperature")
    tensors = {"temperature": _float(_DEFAULT_TEMPERATURE if temperature is None else temperature)}
    for name in ("top_p", "min_p", *_PENALTIES):
        if sampling.get(name) is not None:
            tensors[name] = _float(sampling[name])
    if (top_k := sampling.get("top_k")) is not None and top_k > 0:
        tensors["top_k"] = _int(top_k)
    counts = (sampling.get(name) for name in ("presence_penalty", "frequency_penalty"))
    if spec.prompt_ignore_length and any(counts):
        # In the OpenAI API these penalties apply to output tokens only.
        tensors["prompt_ignore_length"] = _int(num_prompt_tokens)
    return tensors


def _log_probs(num_top: int | None) -> dict[str, Array]:
    """num_top: number of alternatives at each position; None for no log probabilities."""
    if num_top is None:
        return {}
    tensors: dict[str, Array] = {"return_log_probs": np.asarray([[True]])}
    return tensors | ({"num_top_logprobs": _int(num_top)} if num_top else {})


def _guide(options: Mapping[str, str], decoding: Mapping[str, Any] | None) -> dict[str, Array]:
    """Guide of a response format or of tools: from the annotations, or from Dynamo's own field, which Dynamo sets for
    tools too."""
    if GUIDE_TYPE in options:
        kind, guide = options[GUIDE_TYPE], options.get(GUIDE, "")
    elif decoding and TOOLS not in options:
        kind, guide = _dynamo_guide(decoding)
    else:
        return {}
    tensors = {"guided_decoding_guide_type": _text(kind)}
    return tensors | ({"guided_decoding_guide": _text(guide)} if guide else {})


def _dynamo_guide(decoding: Mapping[str, Any]) -> tuple[str, str]:
    if (schema := decoding.get("json")) is not None:
        return "json_schema", schema if isinstance(schema, str) else json.dumps(schema)
    if (pattern := decoding.get("regex")) is not None:
        return "regex", pattern
    if (choices := decoding.get("choice")) is not None:
        return "regex", regex_of_choices(choices)
    if (grammar := decoding.get("grammar")) is not None:
        return "ebnf_grammar", grammar
    raise RequestError(
        f"guided_decoding has {', '.join(sorted(decoding))}; it must have json, regex, choice or grammar"
    )


def _seed(seed: int | None, context_id: str) -> int:
    """The client's seed as an unsigned number, else a hash of the request's id, which is the same on every worker."""
    if seed is not None:
        return seed % _SEEDS
    return int.from_bytes(hashlib.sha256(context_id.encode()).digest()[:8], "big")


def _text(value: str) -> Array:
    return np.asarray([[value.encode()]], np.object_)


def _int(value: int) -> Array:
    return np.asarray([[value]], np.int32)


def _float(value: float) -> Array:
    return np.asarray([[value]], np.float32)
