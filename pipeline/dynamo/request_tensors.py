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

from pipeline.decoding.grammar.guide import Guide
from pipeline.decoding.log_probs import LogitOptions
from pipeline.dynamo.spec import WorkerSpec
from pipeline.errors import RequestError
from pipeline.gateway.annotations import (
    ENGINE_DATA,
    GUIDE,
    GUIDE_TYPE,
    MAX_TOKENS,
    NAMESPACE,
    NUM_DRAFT_TOKENS,
    PLAIN_TEXT,
    PREDICTION,
    STATISTICS,
    STOP_TOKENS,
    STOP_WORDS,
    STRATEGY,
    TEXTS,
    TOKENS,
    TOOLS,
    integer_option,
    list_option,
    logit_bias_option,
    read_annotations,
    regex_of_choices,
)
from pipeline.triton_models.guide_tensors import guide_tensors, logit_option_tensors
from pipeline.triton_models.tensors import Array, float_tensor, int_tensor, text_tensor

_SEEDS = 1 << 64
# Limit of token ids in an INT32 tensor.
_TOKENS = 1 << 31
_PENALTIES = ("presence_penalty", "frequency_penalty", "repetition_penalty")


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """A converted request. num_prompt_tokens: prompt without resumed tokens. num_resumed_tokens: output tokens at the
    end of input_ids, generated earlier. num_remaining_tokens: limit of tokens still to generate. stop_tokens: end the
    output from min_tokens on, and are not part of it. end_tokens: those of the front end, which end the output as its
    last token. keeps_special: whether the text has special tokens. has_prefix: whether the prompt begins with
    `prompt_prefix` of the worker, which the front end does not count."""

    tensors: dict[str, Array]
    num_prompt_tokens: int
    num_resumed_tokens: int
    num_remaining_tokens: int
    has_prediction: bool
    has_prefix: bool
    returns_statistics: bool
    stop_tokens: frozenset[int]
    end_tokens: frozenset[int]
    min_tokens: int
    keeps_special: bool

    @property
    def prompt_ids(self) -> Array:
        return self.tensors["input_ids"][0, : self.num_prompt_tokens]

    @property
    def resumed_ids(self) -> Array:
        return self.tensors["input_ids"][0, self.num_prompt_tokens :]

    def num_before_end(self, token_ids: Sequence[int], num_sent: int) -> int | None:
        """Number of new tokens before the first stop token, or up to the first end token; None without one. num_sent:
        tokens since num_resumed."""
        first = max(0, self.min_tokens - self.num_resumed_tokens - num_sent)
        for number in range(first, len(token_ids)):
            if token_ids[number] in self.stop_tokens:
                return number
            if token_ids[number] in self.end_tokens:
                return number + 1
        return None


def token_request(request: Mapping[str, Any], context_id: str, spec: WorkerSpec) -> TokenRequest:
    """Convert a request. context_id: Dynamo's id of the request, the same on every worker. Raises RequestError if the
    request is invalid."""
    ids: list[int] = request["token_ids"]
    stop, sampling = request.get("stop_conditions") or {}, request.get("sampling_options") or {}
    if sampling.get("n") not in (None, 1):
        # The front end ends a request at its first finish reason; the gateway splits requests.
        raise RequestError("n must be 1 without the gateway (server.gateway.enabled); send the request with seed + 1")
    if not ids:
        raise RequestError("the prompt has no tokens; the OpenAI front end drops the character U+0000")
    if max(ids) >= _TOKENS:
        raise RequestError(f"the prompt holds token {max(ids)}, which no vocabulary has")
    options = read_annotations(request.get("annotations") or [])
    prefix = spec.prompt_prefix if PLAIN_TEXT in options else ()
    ids = [*prefix, *ids]
    asked = integer_option(options, MAX_TOKENS)
    remaining, resumed = _counts(len(ids), stop.get("max_tokens"), asked, spec)
    tensors: dict[str, Array] = {
        "input_ids": np.asarray([ids], np.int32),
        "max_tokens": int_tensor(resumed + remaining),
        "stream": np.asarray([[True]]),
        "return_statistics": np.asarray([[True]]),
        "seed": np.asarray([[_seed(sampling.get("seed"), context_id)]], np.uint64),
    }
    if resumed:
        tensors["num_resumed_tokens"] = int_tensor(resumed)
    if min_tokens := stop.get("min_tokens"):
        _check_min_tokens(min_tokens, asked, len(ids) - resumed, spec)
        tensors["min_tokens"] = int_tensor(min_tokens)
    # Dynamo stops at those of its own field too, but would show the beginning of a word that spans several tokens.
    if words := list_option(options, STOP_WORDS, TEXTS, "texts") or stop.get("stop"):
        tensors["stop_words"] = np.asarray([[word.encode(errors="surrogatepass") for word in words]], np.object_)
    if stop.get("ignore_eos"):
        tensors["end_id"] = int_tensor(-1)
    tensors |= _sampling(sampling, len(ids) - resumed, spec)
    for name in (STRATEGY, PREDICTION):
        if options.get(name):
            tensors[name] = text_tensor(options[name])
    namespace = options.get(NAMESPACE) or (request.get("routing") or {}).get("cache_salt")
    if namespace:
        tensors["namespace"] = text_tensor(namespace)
    if (limit := integer_option(options, NUM_DRAFT_TOKENS)) is not None:
        tensors["num_draft_tokens"] = int_tensor(limit)
    if bias := logit_bias_option(options):
        tensors["logit_bias_ids"] = np.asarray([list(bias)], np.int32)
        tensors["logit_bias_values"] = np.asarray([list(bias.values())], np.float32)
    if (guide := _guide(options, sampling.get("guided_decoding"))) is not None:
        tensors |= guide_tensors(guide)
    num_top = (request.get("output_options") or {}).get("logprobs")
    if num_top is not None:  # the number of alternatives at each position
        tensors |= logit_option_tensors(LogitOptions(log_probs=True, num_top=num_top), of_prompt=False)
    return TokenRequest(
        tensors,
        num_prompt_tokens=len(ids) - resumed,
        num_resumed_tokens=resumed,
        num_remaining_tokens=remaining,
        has_prediction=PREDICTION in tensors,
        has_prefix=bool(prefix),
        returns_statistics=STATISTICS in options,
        stop_tokens=frozenset(list_option(options, STOP_TOKENS, TOKENS, "token ids")),
        end_tokens=frozenset(stop.get("stop_token_ids_hidden") or ()),
        min_tokens=stop.get("min_tokens") or 0,
        keeps_special=(request.get("output_options") or {}).get("skip_special_tokens") is False,
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
        tensors={**wanted.tensors, "input_ids": ids, "num_resumed_tokens": int_tensor(num_resumed)},
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


def _check_min_tokens(min_tokens: int, max_tokens: int | None, num_prompt_tokens: int, spec: WorkerSpec) -> None:
    """Raise RequestError for a min_tokens above max_tokens, or above the room behind the prompt. The server would
    report the lowered max_tokens, which the client did not send."""
    if max_tokens is not None and min_tokens > max_tokens:
        raise RequestError(f"min_tokens is {min_tokens}; it must be in 0 .. {max_tokens} (max_tokens)")
    if min_tokens > max(1, spec.max_seq_len - num_prompt_tokens):
        raise RequestError(
            f"min_tokens is {min_tokens}; prompt and output may have {spec.max_seq_len} tokens, and the prompt has "
            f"{num_prompt_tokens}"
        )


def _sampling(sampling: Mapping[str, Any], num_prompt_tokens: int, spec: WorkerSpec) -> dict[str, Array]:
    temperature = sampling.get("temperature")
    tensors = {"temperature": float_tensor(1.0 if temperature is None else temperature)}  # OpenAI's default
    for name in ("top_p", "min_p", *_PENALTIES):
        if sampling.get(name) is not None:
            tensors[name] = float_tensor(sampling[name])
    if (top_k := sampling.get("top_k")) is not None and top_k > 0:
        tensors["top_k"] = int_tensor(top_k)
    if sampling.get("top_p") == 0:
        tensors["top_k"] = int_tensor(1)  # Triton's top_p of 0 is no limit, that of the OpenAI API the strictest one
    counts = (sampling.get(name) for name in ("presence_penalty", "frequency_penalty"))
    if spec.prompt_ignore_length and any(counts):
        # In the OpenAI API these penalties apply to output tokens only.
        tensors["prompt_ignore_length"] = int_tensor(num_prompt_tokens)
    return tensors


def _guide(options: Mapping[str, str], decoding: Mapping[str, Any] | None) -> Guide | None:
    """Guide of a response format or of tools: from the annotations, or from Dynamo's own field, which Dynamo sets for
    tools too."""
    if GUIDE_TYPE in options:
        return Guide(options[GUIDE_TYPE], options.get(GUIDE, ""))
    return _dynamo_guide(decoding) if decoding and TOOLS not in options else None


def _dynamo_guide(decoding: Mapping[str, Any]) -> Guide:
    if (schema := decoding.get("json")) is not None:
        return Guide("json_schema", schema if isinstance(schema, str) else json.dumps(schema))
    if (pattern := decoding.get("regex")) is not None:
        return Guide("regex", pattern)
    if (choices := decoding.get("choice")) is not None:
        return Guide("regex", regex_of_choices(choices))
    if (grammar := decoding.get("grammar")) is not None:
        return Guide("ebnf_grammar", grammar)
    raise RequestError(
        f"guided_decoding has {', '.join(sorted(decoding))}; it must have json, regex, choice or grammar"
    )


def _seed(seed: int | None, context_id: str) -> int:
    """The client's seed as an unsigned number, else a hash of the request's id, which is the same on every worker."""
    if seed is not None:
        return seed % _SEEDS
    return int.from_bytes(hashlib.sha256(context_id.encode()).digest()[:8], "big")
