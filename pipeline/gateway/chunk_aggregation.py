"""Aggregates the chunks of a stream of the OpenAI API into a whole response."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.gateway.bodies import Json


def aggregated(chunks: Sequence[Json]) -> Json:
    """The whole response. It has the members of the last chunk that has them."""
    whole: Json = {}
    choices: dict[int, _Choice] = {}
    for chunk in chunks:
        for part in chunk.get("choices") or []:
            choices.setdefault(part["index"], _Choice(part["index"])).add(part)
        extension = {**(whole.get("nvext") or {}), **(chunk.get("nvext") or {})}
        whole |= chunk | {"usage": chunk.get("usage") or whole.get("usage")}
        if extension:
            whole["nvext"] = extension
    whole["object"] = whole.get("object", "").removesuffix(".chunk")
    return whole | {"choices": [choices[index].whole() for index in sorted(choices)]}


class _Choice:
    """The parts of one choice so far."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._text: list[str] = []
        # Members of the chat's message, and its calls by index. None for the completions API.
        self._message: Json | None = None
        self._calls: dict[int, Json] = {}
        self._log_probs: Json | None = None
        self._finish_reason: str | None = None

    def add(self, part: Json) -> None:
        delta: dict[str, Any] | None = part.get("delta")
        if delta is None:
            self._text.append(part.get("text") or "")
        else:
            self._text.append(delta.get("content") or "")
            for call in delta.get("tool_calls") or []:
                self._add_call(call)
            others = {name: value for name, value in delta.items() if name not in ("content", "tool_calls")}
            self._message = {**(self._message or {}), **others}
        self._finish_reason = part.get("finish_reason") or self._finish_reason
        if log_probs := part.get("logprobs"):
            known = self._log_probs = self._log_probs or {}
            for name, value in log_probs.items():
                # A chunk with the end token alone has null in place of the list of tokens.
                if known.get(name) is None:
                    known[name] = list(value) if isinstance(value, list) else value
                elif isinstance(value, list):
                    known[name].extend(value)

    def _add_call(self, part: Json) -> None:
        """Add a part of a tool call: the first has its id and name, all have a piece of its arguments."""
        index = part.pop("index", 0)
        if index in self._calls:
            self._calls[index]["function"]["arguments"] += part["function"].get("arguments") or ""
        else:
            self._calls[index] = part

    def whole(self) -> Json:
        text = "".join(self._text)
        choice = {"index": self._index, "finish_reason": self._finish_reason, "logprobs": self._log_probs}
        if self._message is None:
            return choice | {"text": text}
        message = {"role": "assistant", "reasoning_content": None, **self._message, "content": text}
        if self._calls:
            message |= {"content": text or None, "tool_calls": list(self._calls.values())}
        return choice | {"message": message}
