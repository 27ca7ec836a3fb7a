"""Checks requests of the OpenAI API, and converts them to requests to Dynamo's front end."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from pipeline.gateway.annotations import NAMESPACE, annotation
from pipeline.gateway.bodies import Json, parse_json, write_json
from pipeline.gateway.openai_fields import Endpoint, for_front_end
from pipeline.gateway.openai_types import with_whole_numbers
from pipeline.gateway.refusal import FieldError
from pipeline.gateway.responses_request import chat_request, response_head
from pipeline.gateway.rewriting import Rewrite, alternatives, log_probs, move_figures, with_null_content, with_nulls
from pipeline.gateway.tenants import Tenant

_PREFIX = annotation(NAMESPACE, "")
# Limit of choices in OpenAI's API.
_MAX_CHOICES = 128
_SEEDS, _SMALLEST_SEED = 1 << 64, -(1 << 63)


class CheckedChoices(NamedTuple):
    """A checked request. endpoint: of the front end. requests: a request to forward for each choice of each prompt.
    max_tokens: limit of the output of one choice. model: the client's `model` field. conversation: id of the
    conversation, the same in all turns but the first, where it is None. rewrites: changes to the response. num_choices:
    of one prompt. num_bytes: mean size of `requests`. is_whole: whether the client requests a whole response; the
    forwarded requests ask for streams. namespace: the tenant's. response_head: see `responses_request`; None unless the
    request is one of the Responses API."""

    endpoint: Endpoint
    requests: list[Json]
    num_choices: int
    num_bytes: int
    max_tokens: int
    model: object
    conversation: str | None = None
    rewrites: Sequence[Rewrite] = ()
    is_whole: bool = False
    namespace: str = ""
    response_head: Json | None = None


def checked_openai(
    endpoint: Endpoint, body: bytes, tenant: Tenant, tool_call_parser: str | None = None
) -> CheckedChoices:
    """Check a request and set the tenant's namespace. A client chooses a namespace with the annotation "namespace:NAME"
    in `nvext.annotations`, or with `cache_salt`. tool_call_parser: see `for_front_end`. Raises Refusal or
    RequestError."""
    return _checked(endpoint, with_whole_numbers(parse_json(body)), len(body), tenant, tool_call_parser)


def checked_responses(body: bytes, tenant: Tenant, tool_call_parser: str | None = None) -> CheckedChoices:
    """As `checked_openai`, for the Responses API: a request is forwarded as one of the chat API."""
    value = with_whole_numbers(parse_json(body))
    checked = _checked("chat", chat_request(value), len(body), tenant, tool_call_parser)
    return checked._replace(response_head=response_head(value))


def _checked(
    endpoint: Endpoint, value: Json, num_bytes: int, tenant: Tenant, tool_call_parser: str | None
) -> CheckedChoices:
    """num_bytes: of the client's request."""
    num_choices = _num_choices(value.pop("n", None))
    if value.get("best_of") == num_choices:  # then all of them are returned
        del value["best_of"]
    sent = for_front_end(value, endpoint, tool_call_parser)
    max_tokens = sent["max_completion_tokens" if "max_completion_tokens" in sent else "max_tokens"]
    extension = sent["nvext"]
    annotations: list[str] = extension["annotations"]
    # Both are removed, because the worker uses this field of Dynamo if there is no annotation.
    salts = sent.pop("cache_salt", None), extension.pop("cache_salt", None)
    asked = next((text.removeprefix(_PREFIX) for text in annotations if text.startswith(_PREFIX)), None)
    if asked is None:
        asked = next((salt for salt in salts if isinstance(salt, str)), "")
    kept = [text for text in annotations if not text.startswith(_PREFIX)]
    if namespace := tenant.namespace(asked):
        kept.append(annotation(NAMESPACE, namespace))
    extension["annotations"] = kept
    is_whole = not sent.get("stream")
    if is_whole and "stream_options" not in sent:  # else the front end refuses the request
        sent |= {"stream": True, "stream_options": {"include_usage": True}}
    prompts = _prompts(sent)
    requests = [each for prompt in prompts for each in choice_requests(sent | prompt, num_choices)]
    if len(prompts) > 1:  # each request has one prompt and all other fields
        num_bytes = num_bytes // len(prompts) + len(write_json(sent | {"prompt": ""}))
    rewrites: list[Rewrite] = [with_nulls] if endpoint == "completions" else []
    if sent.get("tools"):
        rewrites.append(with_null_content)
    if value.get("logprobs") is not None:
        rewrites.append(alternatives(value.get("top_logprobs") or 0) if endpoint == "chat" else log_probs())
    if value.get("draft_statistics") and len(requests) == 1:
        rewrites.append(move_figures)
    model, conversation = value.get("model"), _conversation(sent.get("messages", []) if endpoint == "chat" else [])
    return CheckedChoices(
        endpoint, requests, num_choices, num_bytes, max_tokens, model, conversation, rewrites, is_whole, namespace
    )


def choice_requests(sent: Json, num_choices: int) -> list[Json]:
    """The requests of all choices. Choice i uses seed + i, so it equals the response to the same request with that seed
    and n = 1. Dynamo's front end cannot serve n above 1, because it ends a request at its first finish reason. sent:
    the client's request without n."""
    if (seed := sent.get("seed")) is None:
        return [sent] * num_choices
    # The front end expects a signed 64-bit number; the worker converts it to unsigned.
    seeds = ((seed + number - _SMALLEST_SEED) % _SEEDS + _SMALLEST_SEED for number in range(num_choices))
    return [sent | {"seed": seed} for seed in seeds]


def _conversation(messages: list[Json]) -> str | None:
    """Id of a conversation: hash of its messages up to the first of the assistant; None without one."""
    roles = [message["role"] for message in messages]
    if "assistant" not in roles:
        return None
    return hashlib.sha256(write_json({"messages": messages[: roles.index("assistant") + 1]})).hexdigest()


def _num_choices(value: object) -> int:
    if value is None:
        return 1
    if type(value) is not int or not 1 <= value <= _MAX_CHOICES:
        raise FieldError("n", f"is {value!r:.40}; it must be a whole number in 1 .. {_MAX_CHOICES}")
    return value


def _prompts(sent: Json) -> list[Json]:
    """The field `prompt` of each prompt. The client's is a text, token ids, or a list of either; a long list in one
    request would not fit into the queue of an engine."""
    prompt = sent.get("prompt")
    if not isinstance(prompt, list) or not prompt or isinstance(prompt[0], int):
        return [{}]
    return [{"prompt": each} for each in prompt]
