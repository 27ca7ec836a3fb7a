"""Rewrites chunks of the front end's responses to OpenAI's or vLLM's format."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from ctypes import c_float

from pipeline.gateway.annotations import ENGINE_DATA, FIGURES
from pipeline.gateway.bodies import Json

# Changes a chunk, and returns it.
Rewrite = Callable[[Json], Json]


def move_figures(chunk: Json) -> Json:
    """Move draft statistics from `nvext.engine_data`, the only place that the front end offers, to
    `metrics.speculative_decoding`, where vLLM has them and load generators such as AIPerf read them."""
    figures = ((chunk.get("nvext") or {}).get(ENGINE_DATA) or {}).pop(FIGURES, None)
    return chunk if figures is None else chunk | {"metrics": {FIGURES: figures}}


def with_nulls(chunk: Json) -> Json:
    """Add the members of a choice of the completions API that the front end leaves out if they are null: strict clients
    require them."""
    for choice in chunk.get("choices") or []:
        choice.setdefault("finish_reason", None)
        choice.setdefault("logprobs", None)
    return chunk


def with_null_content(chunk: Json) -> Json:
    """Replace an empty content of a chat's chunk by null, as OpenAI sends it beside tool calls."""
    for choice in chunk.get("choices") or []:
        if (choice.get("delta") or {}).get("content") == "":
            choice["delta"] = choice["delta"] | {"content": None}
    return chunk


def with_end_apart(chunk: Json) -> list[Json]:
    """The chunk of a stream, or two if it has tool calls and their finish reason: OpenAI's client reports a call as
    done when the finish reason comes in a later chunk, as OpenAI sends it."""
    choices = chunk.get("choices") or []
    ends = [
        {"index": choice["index"], "delta": {}, "finish_reason": choice["finish_reason"], "logprobs": None}
        for choice in choices
        if choice.get("finish_reason") and (choice.get("delta") or {}).get("tool_calls")
    ]
    if not ends:
        return [chunk]
    indices = {end["index"] for end in ends}
    calls = [choice | {"finish_reason": None} if choice["index"] in indices else choice for choice in choices]
    return [chunk | {"choices": calls}, chunk | {"choices": ends}]


def log_probs() -> Rewrite:
    """Rewrite of one response of the completions API: converts the alternatives from lists to objects from token to log
    probability, and adds `text_offset`, the position of each token in the text. Without alternatives (`logprobs`: 0)
    the object of a token has that token alone, as vLLM sends it. The values of the tokens get the digits of the
    alternatives: the front end writes the same 32 bits as the shortest text of 32 bits, or of 64."""
    ends: dict[int, int] = defaultdict(int)  # length of the text so far, by choice

    def change(chunk: Json) -> Json:
        for choice in chunk.get("choices") or []:
            if (found := choice.get("logprobs")) is None:
                continue
            if values := found.get("token_logprobs"):
                found["token_logprobs"] = [value if value is None else c_float(value).value for value in values]
            for position, alternatives in enumerate(found.get("top_logprobs") or []):
                if isinstance(alternatives, list):
                    by_token: dict[str, float] = {}
                    for entry in alternatives:  # the most probable one is first; clients keep that order
                        by_token.setdefault(entry["token"], entry["logprob"])  # two tokens can have the same text
                    found["top_logprobs"][position] = by_token
            if not found.get("top_logprobs"):
                pairs = zip(found.get("tokens") or [], found.get("token_logprobs") or [], strict=True)
                found["top_logprobs"] = [{token: value} for token, value in pairs]
            offsets = []
            for token in found.get("tokens") or []:
                offsets.append(ends[choice["index"]])
                ends[choice["index"]] += len(token)
            found["text_offset"] = offsets
        return chunk

    return change


def alternatives(num_asked: int) -> Rewrite:
    """Rewrite of the chat API: limits the alternatives to the requested number. The front end appends the chosen token
    to the most probable ones, and sends one if none is requested."""

    def change(chunk: Json) -> Json:
        for choice in chunk.get("choices") or []:
            for token in (choice.get("logprobs") or {}).get("content") or []:
                token["top_logprobs"] = token["top_logprobs"][:num_asked]
        return chunk

    return change
