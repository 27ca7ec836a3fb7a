"""Folds the stream of a chat into a whole response.

The gateway requests each whole chat as a stream. For a whole response, Dynamo's front end (1.4.2) runs the parser of
tool calls even if the request has no tools, and turns a text such as `{"name": "Ann", "age": 7}` into a call. It also
completes a call that `max_tokens` has cut, with wrong arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.gateway.bodies import Json
from pipeline.gateway.event_stream import chunk_of, events_of
from pipeline.gateway.refusal import Refusal
from pipeline.gateway.response_writer import Responder, send_json


class FoldingResponder:
    """Receives the stream of a chat with one choice, and sends it to `answer` as a whole response."""

    def __init__(self, answer: Responder) -> None:
        self._answer = answer
        self._held = b""
        self._whole: Json = {}
        self._choice: Json = {"index": 0, "message": {}, "finish_reason": None, "logprobs": None}
        self._text: list[str] = []
        self._tokens: list[Json] = []
        self._calls: dict[int, Json] = {}

    async def start(self, status: int, headers: Mapping[str, str], is_stream: bool = False) -> None:
        pass

    async def piece(self, data: bytes) -> None:
        events, end, self._held = (self._held + data).rpartition(b"\n\n")
        for event in events_of(events + end) if events else []:
            if (chunk := chunk_of(event)) is not None:
                self._add(chunk)

    async def end(self) -> None:
        text = "".join(self._text)
        message = {"role": "assistant", "reasoning_content": None, **self._choice["message"], "content": text}
        if self._calls:
            message |= {"content": text or None, "tool_calls": list(self._calls.values())}
        choices = [self._choice | {"message": message}]
        await send_json(self._answer, self._whole | {"object": "chat.completion", "choices": choices})

    async def refuse(self, refusal: Refusal, closes: bool = False) -> None:
        await self._answer.refuse(refusal, closes)

    def _add(self, chunk: Json) -> None:
        """Add a chunk of the stream."""
        for choice in chunk.pop("choices", None) or []:
            delta: dict[str, Any] = choice.get("delta") or {}
            self._text.append(delta.pop("content", None) or "")
            for part in delta.pop("tool_calls", None) or []:
                self._add_call(part)
            self._choice["message"] |= delta
            self._choice["finish_reason"] = choice.get("finish_reason") or self._choice["finish_reason"]
            if log_probs := choice.get("logprobs"):
                self._tokens += log_probs.get("content") or []
                self._choice["logprobs"] = log_probs | {"content": self._tokens}
        extension = {**self._whole.get("nvext", {}), **(chunk.pop("nvext", None) or {})}
        # The id and the time of the first chunk, and the usage of the last one.
        self._whole = chunk | self._whole | {"usage": chunk.get("usage") or self._whole.get("usage")}
        if extension:
            self._whole["nvext"] = extension

    def _add_call(self, part: Json) -> None:
        """Add a part of a tool call: the first has its id and name, all have a piece of its arguments."""
        index = part.pop("index", 0)
        if index in self._calls:
            self._calls[index]["function"]["arguments"] += part["function"].get("arguments") or ""
        else:
            self._calls[index] = part
