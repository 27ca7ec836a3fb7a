"""Converts fields of an OpenAI request that Dynamo's front end does not forward to annotations for the worker.

field of the request                       treatment and reason
prediction, logit_bias                     converted: the front end drops them
stop                                       converted: the front end drops it with ignore_eos, and fails with status 500
                                           for more than four words
stop_token_ids                             converted: the front end counts later tokens of their chunk in the usage, and
                                           drops them with ignore_eos
strategy, num_draft_tokens                 converted: the front end refuses unknown fields
draft_statistics                           converted: requests draft statistics in `nvext.engine_data`
response_format, guided_*                  converted: the front end accepts them, but does not migrate such a request
structured_outputs                         converted: vLLM's newer form of guided_*, which the front end refuses
tools, tool_choice, parallel_tool_calls    copied: they become a guide, so that the output has valid calls
max_tokens, max_completion_tokens          copied: the worker counts the earlier tokens of a migrated request
prompt                                     marked if it is a text: the front end adds no BOS token
a tool_choice of allowed_tools             converted to the allowed tools and their mode: the front end refuses it
a refusal in place of a content, or a part becomes a text: chat templates cannot read it
stream_options without include_usage       completed: the front end requires it
top_logprobs of 0                          removed: the front end would return no log probabilities at all
nvext.greed_sampling                       becomes a temperature of 0: the front end drops the temperature, and the
                                           default would be 1
a field of null, user, safety_identifier, prompt_cache_*, and those of vLLM with the value of _AS_SERVED
                                           removed: without effect on the output, and the front end refuses them, or an
                                           empty user

Other fields are refused that front end or worker would ignore, see `_refuse_unsupported`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, TypeGuard

from pipeline.errors import RequestError
from pipeline.gateway.annotations import (
    ENGINE_DATA,
    GUIDE,
    GUIDE_TYPE,
    LOGIT_BIAS,
    MAX_TOKENS,
    NUM_DRAFT_TOKENS,
    PLAIN_TEXT,
    PREDICTION,
    STATISTICS,
    STOP_TOKENS,
    STOP_WORDS,
    STRATEGY,
    TOOLS,
    annotation,
)
from pipeline.gateway.openai_types import check_openai_types
from pipeline.gateway.refusal import FieldError
from pipeline.gateway.response_guides import format_guide, guided_fields, response_guide
from pipeline.gateway.tool_guides import tool_guide

Endpoint = Literal["chat", "completions"]
# Default limits of the output. The worker lowers the limit to the engine's length.
_MAX_TOKENS: Mapping[Endpoint, int] = {"chat": 1 << 20, "completions": 16}
# Annotations removed from a client's request: wrong ones would corrupt the worker's token counts or grammar.
_RESERVED = (f"{MAX_TOKENS}:", f"{GUIDE_TYPE}:", f"{GUIDE}:", f"{TOOLS}:", f"{PLAIN_TEXT}:")
# Fields of OpenAI's API without effect on the output.
_WITHOUT_EFFECT = ("user", "safety_identifier", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention")
# Unsupported fields of OpenAI's API and of vLLM, with the value that asks for what the server does: their default.
_AS_SERVED: Mapping[str, Any] = {
    "verbosity": "medium",
    "add_generation_prompt": True,
    "continue_final_message": False,
    "include_reasoning": True,
    "length_penalty": 1,
    "priority": 0,
    "return_token_ids": False,
    "spaces_between_special_tokens": True,
    "use_beam_search": False,
}
# Fields that front end or worker ignore.
_IGNORED = (
    *("include_stop_str_in_output", "prompt_logprobs", "prompt_embeds", "audio", "verbosity"),
    *("allowed_token_ids", "bad_words_token_ids", "guided_whitespace_pattern"),
)
_IGNORED_EXTENSIONS = ("use_raw_prompt", "max_thinking_tokens", "metadata_upload")
_GREEDY = "greed_sampling"
_FUNCTION = '"function": {"name": "..."'


def for_front_end(body: Mapping[str, Any], endpoint: Endpoint, tool_call_parser: str | None) -> dict[str, Any]:
    """Convert a client's request to the request to the front end. tool_call_parser: Dynamo's parser of the model's
    calls. Raises RequestError for an unsupported field or a value of a wrong type."""
    without_effect = {*_WITHOUT_EFFECT, *(name for name, value in _AS_SERVED.items() if body.get(name) == value)}
    sent = {name: value for name, value in body.items() if value is not None and name not in without_effect}
    if (outputs := sent.pop("structured_outputs", None)) is not None:
        sent |= guided_fields(outputs)
    check_openai_types(sent, endpoint)
    _refuse_unsupported(sent)
    if "stream_options" in sent:
        sent["stream_options"] = {"include_usage": False} | sent["stream_options"]
    if endpoint == "chat" and "messages" in sent:
        sent["messages"] = [_with_text_parts(message) for message in sent["messages"]]
    _limit_tools(sent)
    _check_tools(sent)
    options: dict[str, str] = {STRATEGY: sent.pop(STRATEGY)} if STRATEGY in sent else {}
    options |= _prediction(sent)
    if words := sent.pop("stop", []):
        options[STOP_WORDS] = json.dumps([words] if isinstance(words, str) else words)
    options |= {name: json.dumps(value) for name in (STOP_TOKENS, LOGIT_BIAS) if (value := sent.pop(name, None))}
    if sent.get("tools") and format_guide(sent.get("response_format")):
        if sent.get("tool_choice", "auto") in ("none", "auto"):
            sent["tool_choice"] = "none"  # Dynamo's parsers read a JSON text with the field `name` as a call
        else:
            del sent["response_format"]  # it is one of texts, and the output is a call; OpenAI and vLLM ignore it, too
    if guide := response_guide(sent):
        options |= {GUIDE_TYPE: guide[0], GUIDE: guide[1]}
    options |= _tools(sent, tool_call_parser, GUIDE_TYPE in options)
    if (limit := sent.pop(NUM_DRAFT_TOKENS, None)) is not None:
        options[NUM_DRAFT_TOKENS] = str(limit)
    if sent.get("top_logprobs") == 0:
        del sent["top_logprobs"]
    name = "max_completion_tokens" if "max_completion_tokens" in sent else "max_tokens"
    options[MAX_TOKENS] = str(sent.setdefault(name, _MAX_TOKENS[endpoint]))
    if endpoint == "completions" and _is_text(sent.get("prompt")):
        options[PLAIN_TEXT] = "true"
    extension = _extension(sent)
    annotations, fields = _texts(extension, "annotations"), _texts(extension, "extra_fields")
    if sent.pop(STATISTICS, False) or ENGINE_DATA in fields:
        options[STATISTICS] = "true"
    kept = [text for text in annotations if not text.startswith(_RESERVED)]
    # A worker returns its refusal in ENGINE_DATA. With tools the front end drops it, see `front_end`.
    extra = {*fields} - {ENGINE_DATA} if TOOLS in options else {*fields, ENGINE_DATA}
    sent["nvext"] = {
        **extension,
        "annotations": kept + [annotation(name, value) for name, value in options.items()],
        "extra_fields": sorted(extra),
    }
    return sent


def _extension(sent: dict[str, Any]) -> dict[str, Any]:
    """The field `nvext` without greed_sampling, which becomes the temperature 0 in `sent`."""
    extension = sent.get("nvext") or {}
    if not isinstance(extension, Mapping):
        raise FieldError("nvext", "must be an object")
    for name in _IGNORED_EXTENSIONS:
        if extension.get(name):
            raise FieldError(f"nvext.{name}", "is not supported; leave it out")
    greedy = extension.get(_GREEDY)
    if greedy is not None and type(greedy) is not bool:
        raise FieldError(f"nvext.{_GREEDY}", "must be true or false")
    if greedy:
        sent["temperature"] = 0
    return {name: value for name, value in extension.items() if name != _GREEDY}


def _refuse_unsupported(body: Mapping[str, Any]) -> None:
    for name in _IGNORED:
        if body.get(name):
            raise FieldError(name, "is not supported; leave it out")
    if body.get("detokenize") is False:
        raise FieldError("detokenize", "must be true: the output is a text; leave detokenize out")
    if "web_search_options" in body:
        raise FieldError("web_search_options", "is not supported: the server does not search the web; leave it out")
    if body.get("modalities", ["text"]) != ["text"]:
        raise FieldError("modalities", 'must be ["text"]; this model writes text')
    if body.get("top_logprobs") and body.get("logprobs", False) is False:
        raise FieldError("top_logprobs", "needs logprobs; send logprobs: true, too")
    if body.get("echo"):
        raise FieldError("echo", "is not supported: a response has no tokens of the prompt; leave echo out")
    if body.get("best_of") not in (None, 1):
        raise FieldError("best_of", "is not supported, unless it is n; send n for several choices")
    if body.get("suffix"):
        raise FieldError("suffix", "is not supported: the model writes text only after the prompt; leave it out")


def _with_text_parts(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """The message with its refusals as texts. message: one that `check_openai_types` accepts."""
    parts, refusal = message.get("content"), message.get("refusal")
    if parts is None and isinstance(refusal, str) and not message.get("tool_calls"):
        return {name: value for name, value in message.items() if name != "refusal"} | {"content": refusal}
    if not isinstance(parts, list):
        return message
    texts = [{"type": "text", "text": part["refusal"]} if part["type"] == "refusal" else part for part in parts]
    return {**message, "content": texts}


def _limit_tools(sent: dict[str, Any]) -> None:
    """Replace a tool_choice of type `allowed_tools` by its mode, and the tools by those that it lists."""
    choice = sent.get("tool_choice")
    if not isinstance(choice, Mapping) or choice.get("type") != "allowed_tools":
        return
    allowed, tools = choice.get("allowed_tools"), sent.get("tools")
    listed = allowed.get("tools") if isinstance(allowed, Mapping) else None
    if not isinstance(allowed, Mapping) or allowed.get("mode") not in ("auto", "required") or not _are_tools(listed):
        raise FieldError("tool_choice.allowed_tools", "must have a mode (auto or required) and tools")
    names = [tool["function"]["name"] for tool in listed]
    by_name = {tool["function"]["name"]: tool for tool in tools} if _are_tools(tools) else {}
    if unknown := [name for name in names if name not in by_name]:
        raise FieldError("tool_choice", f"allows {unknown[0][:80]!r}, which is not in tools")
    sent |= {"tools": [by_name[name] for name in names], "tool_choice": allowed["mode"]}


def _check_tools(sent: Mapping[str, Any]) -> None:
    """Raise FieldError for tools, or a choice of them, of another form than OpenAI's."""
    if sent.get("tools", []) != [] and not _are_tools(sent["tools"]):
        raise FieldError("tools", f'must be a list of {{"type": "function", {_FUNCTION}, "parameters": {{...}}}}}}')
    choice = sent.get("tool_choice", "none")
    if choice not in ("none", "auto", "required") and not _are_tools([choice]):
        raise FieldError("tool_choice", f'must be none, auto, required, or {{"type": "function", {_FUNCTION}}}}}')


def _are_tools(value: object) -> TypeGuard[list[Mapping[str, Any]]]:
    """Whether a value is a list of functions with names, at least one."""
    tools = [tool if isinstance(tool, Mapping) else {} for tool in (value if isinstance(value, list) else [])]
    return bool(tools) and all(tool.get("type") == "function" and _is_function(tool.get("function")) for tool in tools)


def _is_function(value: object) -> bool:
    return (
        isinstance(value, Mapping)
        and isinstance(value.get("name"), str)
        and isinstance(value.get("parameters"), Mapping | None)
    )


def _is_text(prompt: object) -> bool:
    """Whether a prompt is a text or a list of texts, and not of token ids."""
    return isinstance(prompt[0] if isinstance(prompt, list) and prompt else prompt, str)


def _prediction(sent: dict[str, Any]) -> dict[str, str]:
    """{"type": "content", "content": text or [{"type": "text", "text": text}, ...]}"""
    value = sent.pop("prediction", None)
    if value is None:
        return {}
    content = value.get("content") if isinstance(value, Mapping) else value
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, Mapping) else None for part in content]
        content = "".join(part for part in parts if isinstance(part, str)) if None not in parts else None
    if not isinstance(content, str):
        raise FieldError("prediction", 'must be {"type": "content", "content": "..."}')
    return {PREDICTION: content} if content else {}


def _tools(sent: Mapping[str, Any], parser: str | None, has_guide: bool) -> dict[str, str]:
    """The mark of a request with tools, and their guide. Empty if no call is allowed. sent: a request that
    `_check_tools` accepts. has_guide: whether the request has another guide."""
    tools, choice = sent.get("tools"), sent.get("tool_choice", "auto")
    if not tools or choice == "none":
        return {}
    if isinstance(choice, Mapping):
        choice = choice["function"]
    if has_guide and choice != "auto":
        raise RequestError("guided_* cannot be combined with a tool_choice that requires a call")
    functions = {tool["function"]["name"]: tool["function"] for tool in tools}
    guide = tool_guide(functions, choice, sent.get("parallel_tool_calls") is not False, parser)
    return {TOOLS: "true"} | ({GUIDE_TYPE: guide[0], GUIDE: guide[1]} if guide and not has_guide else {})


def _texts(extension: Mapping[str, Any], name: str) -> list[str]:
    value = extension.get(name) or []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise FieldError(f"nvext.{name}", "must be a list of texts")
    return value
