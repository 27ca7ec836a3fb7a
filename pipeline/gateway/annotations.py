"""Request options as annotations `key:value`, which Dynamo's front end forwards to the worker; it would drop the
options themselves.

The request holds them in `nvext.annotations`. `openai_fields` converts the fields of an OpenAI request to them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, TypeVar

from pydantic import Field, NonNegativeInt, TypeAdapter

from pipeline.errors import RequestError

T = TypeVar("T")

STRATEGY = "strategy"
PREDICTION = "prediction"
# Namespace of the trie: drafts come from its past outputs, and the output is added to it.
NAMESPACE = "namespace"
# The request's original max_tokens. If a request migrates, the front end subtracts the tokens generated so far from its
# own max_tokens, so the difference is their number.
MAX_TOKENS = "max_tokens"
# JSON list of stop words.
STOP_WORDS = "stop_words"
# JSON list of tokens that end the output and are not part of it. Dynamo's front end finds them itself, but counts the
# later tokens of their chunk in the usage, and ignores them with ignore_eos.
STOP_TOKENS = "stop_token_ids"
# JSON object from token id to bias.
LOGIT_BIAS = "logit_bias"
# Response format. Dynamo does not migrate a request with a response format in Dynamo's own field.
GUIDE_TYPE = "guide_type"
GUIDE = "guide"
# Whether the request has tools.
TOOLS = "tools"
# Whether the prompt is a text without a chat template. The front end adds no special tokens to a text, such as BOS,
# because chat templates hold them.
PLAIN_TEXT = "plain_text"
NUM_DRAFT_TOKENS = "num_draft_tokens"
# Whether the last chunk holds the request's draft statistics.
STATISTICS = "draft_statistics"
# Field of `nvext` that the front end forwards from the worker to the client.
ENGINE_DATA = "engine_data"
# Member of ENGINE_DATA: draft statistics of a request in vLLM's format.
FIGURES = "speculative_decoding"
# Member of ENGINE_DATA: a worker's error {"status": 400, "message": "..."}. The message of an exception would reach
# only clients of the chat API without streaming.
REFUSAL = "refusal"
# Finish reason for a fault of a worker in a request with tools, from which the front end removes ENGINE_DATA. No output
# ends with it otherwise.
FAULT = "content_filter"
_INTEGER = re.compile(r"-?[0-9]{1,10}")
TEXTS, TOKENS = TypeAdapter(list[str]), TypeAdapter(list[NonNegativeInt])
_BIASES = TypeAdapter(dict[Annotated[str, Field(pattern="^[0-9]{1,9}$")], float])


def annotation(name: str, value: str) -> str:
    """The annotation of an option."""
    return f"{name}:{value}"


def read_annotations(annotations: Sequence[str]) -> dict[str, str]:
    """Options by name, unknown ones too. The last value of a repeated name wins."""
    return {name: value for name, _, value in (text.partition(":") for text in annotations)}


def regex_of_choices(choices: Sequence[str]) -> str:
    """The guide of an output that is one of several texts."""
    return "|".join(f"(?:{re.escape(choice)})" for choice in choices)


def integer_option(options: Mapping[str, str], name: str) -> int | None:
    """Value of an integer option; None if absent. Raises RequestError if it is not an integer of 32 bits."""
    if (value := options.get(name)) is None:
        return None
    # int() also reads "5_0" and " 5", and numpy would wrap what an INT32 tensor cannot hold.
    number = int(value) if _INTEGER.fullmatch(value) else 1 << 31
    if not -(1 << 31) <= number < 1 << 31:
        raise RequestError(f"the annotation {name} is {value!r}; it must be a whole number of 32 bits")
    return number


def logit_bias_option(options: Mapping[str, str]) -> dict[int, float]:
    """Bias by token id. Raises RequestError if it is not a JSON object from token ids to numbers."""
    if not (text := options.get(LOGIT_BIAS)):
        return {}
    try:
        biases = _BIASES.validate_python(json.loads(text), strict=True)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"logit_bias must be an object from token ids to numbers, not {text[:80]!r}") from error
    return {int(token): bias for token, bias in biases.items()}


def list_option(options: Mapping[str, str], name: str, kind: TypeAdapter[list[T]], items: str) -> list[T]:
    """The JSON list in an option; empty if the option is absent. kind: TEXTS or TOKENS. items: what it holds, for the
    message of RequestError."""
    if (text := options.get(name)) is None:
        return []
    try:
        return kind.validate_python(json.loads(text), strict=True)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the annotation {name} must be a JSON list of {items}, not {text[:80]!r}") from error
