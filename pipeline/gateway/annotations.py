"""Request options that Dynamo's front end would drop, as annotations `key:value` that it forwards to the worker.

A client sends them in `nvext.annotations`; `openai_fields` writes them from the fields of an OpenAI request.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.errors import RequestError

STRATEGY = "strategy"
PREDICTION = "prediction"
# Namespace of past outputs to draft from, which also learns from this output.
NAMESPACE = "namespace"
# Limit of tokens of the whole output. When a request moves to another worker, the front end lowers max_tokens by the
# tokens so far; the difference counts them.
MAX_TOKENS = "max_tokens"
# JSON object from token id to bias.
LOGIT_BIAS = "logit_bias"
# A response format. Dynamo does not move a request that has one in its own field to another worker.
GUIDE_TYPE = "guide_type"
GUIDE = "guide"
# Functions that may be called, and which choice there is: see `openai_fields.tools_option`.
TOOLS = "tools"
NUM_DRAFT_TOKENS = "num_draft_tokens"
# Figures of the request's drafts in the last chunk.
STATISTICS = "draft_statistics"
NAMES = (
    STRATEGY,
    PREDICTION,
    NAMESPACE,
    MAX_TOKENS,
    LOGIT_BIAS,
    GUIDE_TYPE,
    GUIDE,
    TOOLS,
    NUM_DRAFT_TOKENS,
    STATISTICS,
)
# Field of `nvext` that the front end passes through from the worker to the client.
ENGINE_DATA = "engine_data"
# Member of ENGINE_DATA: figures of a request's drafts, in vLLM's form.
FIGURES = "speculative_decoding"
# Member of ENGINE_DATA: a worker refuses a request with {"status": 400, "message": "..."}. The message of an exception
# would reach clients of the chat API only, and only without streaming.
REFUSAL = "refusal"


def annotation(name: str, value: str) -> str:
    """One option as an annotation."""
    return f"{name}:{value}"


def read_annotations(annotations: Sequence[str]) -> dict[str, str]:
    """Options by name; the last one of a repeated name. Annotations with unknown names are left out."""
    pairs = (text.partition(":") for text in annotations)
    return {name: value for name, _, value in pairs if name in NAMES}


def integer_option(options: Mapping[str, str], name: str) -> int | None:
    """A whole number, or None if it was not sent. Raises RequestError for an invalid number."""
    if (value := options.get(name)) is None:
        return None
    try:
        return int(value)
    except ValueError as error:
        raise RequestError(f"the annotation {name} is {value!r}; it must be a whole number") from error


def logit_bias_option(options: Mapping[str, str]) -> dict[int, float]:
    """Bias by token id. Raises RequestError if it is not a JSON object from token ids to numbers."""
    text = options.get(LOGIT_BIAS)
    if not text:
        return {}
    try:
        values: dict[str, Any] = json.loads(text)
        return {int(token): float(bias) for token, bias in values.items()}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise RequestError(f"logit_bias must be an object from token ids to numbers, not {text[:80]!r}") from error
