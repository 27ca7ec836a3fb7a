"""Converts requests of OpenAI's Responses API to requests of its chat API.

field of the request                       treatment
input, instructions                        become messages
max_output_tokens                          becomes max_completion_tokens
text.format                                becomes response_format
tools, tool_choice                         get the form of the chat API
top_logprobs, include                      become logprobs and top_logprobs
reasoning.effort                           becomes reasoning_effort, which chat templates can read
store, metadata, service_tier, stream_options, truncation of "disabled", reasoning items
                                           removed: without effect on the output

Fields in _REFUSED are refused, and those of the chat API in _OF_CHAT. Other fields stay as they are, and
`openai_fields` treats them as those of the chat API.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.gateway.bodies import Json, shown
from pipeline.gateway.generate_body import positive
from pipeline.gateway.refusal import FieldError

_ROLES = ("user", "assistant", "system", "developer")
_REFUSED = {
    "previous_response_id": "the server stores no responses; send the earlier items in input",
    "conversation": "the server stores no conversations; send the earlier items in input",
    "prompt": "the server stores no prompts; send the text in input",
    "background": "the server stores no responses; leave it out",
    "max_tool_calls": "the server runs no tools; leave it out",
}
# Fields of the chat API, and what replaces them.
_OF_CHAT = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "logprobs": "include",
    "n": "several requests",
}
_WITHOUT_EFFECT = ("store", "metadata", "service_tier", "stream_options", "truncation", "include")
_TEXT_PARTS = ("input_text", "output_text", "text")
_LOG_PROBS = "message.output_text.logprobs"


def chat_request(body: Mapping[str, Any]) -> Json:
    """The request of the chat API. Raises RequestError for an unsupported field or a wrong value."""
    sent = {name: value for name, value in body.items() if value is not None}
    for name, reason in _REFUSED.items():
        if sent.pop(name, False):
            raise FieldError(name, f"is not supported: {reason}")
    for name, other in _OF_CHAT.items():
        if name in sent:
            raise FieldError(name, f"is not a field of the Responses API; send {other}")
    if sent.get("truncation", "disabled") != "disabled":
        raise FieldError("truncation", 'must be "disabled": the server cuts no input')
    sent |= _log_probs(sent) | _text_options(sent.pop("text", {})) | _reasoning(sent.pop("reasoning", {}))
    messages = [{"role": "system", "content": _text(sent, "instructions", "")}] if "instructions" in sent else []
    sent["messages"] = messages + _messages(sent.get("input"))
    if "tools" in sent:
        sent["tools"] = [_tool(tool, f"tools[{number}]") for number, tool in enumerate(_list(sent["tools"], "tools"))]
    if isinstance(sent.get("tool_choice"), Mapping):
        sent["tool_choice"] = _tool_choice(sent["tool_choice"])
    if (limit := sent.pop("max_output_tokens", None)) is not None:
        if positive(limit) is None:
            raise FieldError("max_output_tokens", f"must be a whole number of at least 1; found {shown(limit)}")
        sent["max_completion_tokens"] = limit
    kept = {name: value for name, value in sent.items() if name not in ("instructions", "input", *_WITHOUT_EFFECT)}
    return kept | ({"stream_options": {"include_usage": True}} if sent.get("stream") else {})


def response_head(body: Mapping[str, Any]) -> Json:
    """The members of a response that repeat the request. body: a request that `chat_request` accepts."""
    defaults: Json = {
        "instructions": None,
        "max_output_tokens": None,
        "metadata": {},
        "model": None,
        "parallel_tool_calls": True,
        "reasoning": {"effort": None, "summary": None},
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 1.0,
        "user": None,
    }
    given = {name: default if body.get(name) is None else body[name] for name, default in defaults.items()}
    fixed = {"background": False, "previous_response_id": None, "store": False, "truncation": "disabled"}
    return {"object": "response", **given, **fixed}


def _log_probs(sent: Json) -> Json:
    """The options for log probabilities, which `include` or `top_logprobs` request."""
    number, include = sent.pop("top_logprobs", 0), _list(sent.get("include", []), "include")
    return {"logprobs": True, "top_logprobs": number} if number or _LOG_PROBS in include else {}


def _text_options(text: Any) -> Json:
    """The response format."""
    if not isinstance(text, Mapping):
        raise FieldError("text", f'must be an object such as {{"format": {{"type": "text"}}}}; found {shown(text)}')
    if text.get("verbosity") not in (None, "medium"):
        raise FieldError("text.verbosity", "is not supported; leave it out")
    if (found := text.get("format")) is None:
        return {}
    kind = found.get("type") if isinstance(found, Mapping) else None
    if kind not in ("text", "json_object", "json_schema"):
        raise FieldError("text.format", f"must have type text, json_object or json_schema; found {shown(found)}")
    if kind != "json_schema":
        return {"response_format": {"type": kind}}
    if not isinstance(found.get("schema"), Mapping):
        raise FieldError("text.format", 'must be {"type": "json_schema", "name": "...", "schema": {...}}')
    return {"response_format": {"type": kind, "json_schema": {key: found[key] for key in found if key != "type"}}}


def _reasoning(reasoning: Any) -> Json:
    if not isinstance(reasoning, Mapping):
        raise FieldError("reasoning", f'must be an object such as {{"effort": "low"}}; found {shown(reasoning)}')
    return {} if reasoning.get("effort") is None else {"reasoning_effort": reasoning["effort"]}


def _messages(items: Any) -> list[Json]:
    """The messages of a chat. items: a text, or a list of messages, calls and their outputs."""
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    messages: list[Json] = []
    for number, item in enumerate(_list(items, "input", "a text or a list of items")):
        place = f"input[{number}]"
        kind = item.get("type", "message") if isinstance(item, Mapping) else None
        if kind == "message":
            messages.append(_message(item, place))
        elif kind == "function_call":
            function = {name: _text(item, name, f"{place}.") for name in ("name", "arguments")}
            call = {"id": _text(item, "call_id", f"{place}."), "type": "function", "function": function}
            # The text and the calls of one response are one message of a chat.
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None})
            messages[-1].setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            content = _content(item.get("output"), f"{place}.output")
            messages.append({"role": "tool", "tool_call_id": _text(item, "call_id", f"{place}."), "content": content})
        elif kind != "reasoning":
            kinds = "a message, a function_call or a function_call_output"
            raise FieldError(place, f"must be {kinds}; found {shown(kind or item)}")
    return messages


def _message(item: Mapping[str, Any], place: str) -> Json:
    if item.get("role") not in _ROLES:
        raise FieldError(f"{place}.role", f"must be one of {', '.join(_ROLES)}; found {shown(item.get('role'))}")
    return {"role": item["role"], "content": _content(item.get("content"), f"{place}.content")}


def _content(content: Any, place: str) -> str | list[Json]:
    """The text, or the texts, of a message or an output."""
    if isinstance(content, str):
        return content
    texts = []
    for number, part in enumerate(_list(content, place, "a text or a list of parts")):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in (*_TEXT_PARTS, "refusal"):
            raise FieldError(f"{place}[{number}]", f"has type {shown(kind)}; this model reads text")
        texts.append(_text(part, "refusal" if kind == "refusal" else "text", f"{place}[{number}]."))
    if not texts:
        raise FieldError(place, "is an empty list; send a text, or parts of one")
    return texts[0] if len(texts) == 1 else [{"type": "text", "text": text} for text in texts]


def _tool(tool: Any, place: str) -> Json:
    """A function in the form of the chat API, which `openai_fields` checks."""
    if not isinstance(tool, Mapping) or tool.get("type") != "function":
        found = tool.get("type") if isinstance(tool, Mapping) else tool
        raise FieldError(place, f"must have type function: the server runs no tools; found {shown(found)}")
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}


def _tool_choice(choice: Mapping[str, Any]) -> Json:
    """A choice of tools in the form of the chat API, which `openai_fields` checks."""
    if choice.get("type") != "allowed_tools":
        return _tool(choice, "tool_choice")
    tools = _list(choice.get("tools"), "tool_choice.tools")
    listed = [_tool(tool, f"tool_choice.tools[{number}]") for number, tool in enumerate(tools)]
    return {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode"), "tools": listed}}


def _list(value: Any, name: str, description: str = "a list") -> Sequence[Any]:
    if not isinstance(value, list):
        raise FieldError(name, f"must be {description}; found {shown(value)}")
    return value


def _text(item: Mapping[str, Any], name: str, place: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise FieldError(f"{place}{name}", f"must be a text; found {shown(value)}")
    return value
