"""Converts the response to a chat to a response of OpenAI's Responses API: its events, or the whole response."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from pipeline.gateway.bodies import Json, write_json
from pipeline.gateway.event_stream import event_of
from pipeline.gateway.openai_body import CheckedChoices
from pipeline.gateway.response_writer import JSON, ResponseWriter

# Members of a chunk that the response has, too: draft statistics.
_EXTENSIONS = ("nvext", "metrics")


class ResponsesOutput:
    """Sends one response to the client, whole or as events. head: see `responses_request.response_head`."""

    def __init__(self, answer: ResponseWriter, head: Json, checked: CheckedChoices) -> None:
        self._answer = answer
        self._rewrites, self._is_whole = checked.rewrites, checked.is_whole
        self._events = ResponseEvents(head)

    async def add(self, number: int, chunk: Json | bytes) -> None:
        """Add a chunk of the chat. Events without JSON have no counterpart here. number: of the choice, always 0."""
        if isinstance(chunk, bytes):
            return
        for rewrite in self._rewrites:
            chunk = rewrite(chunk)
        if (events := b"".join(self._events.of(chunk))) and not self._is_whole:
            await self._answer.start_stream()
            await self._answer.piece(events)

    async def finish(self) -> None:
        """End the response after the end of the chat."""
        events = b"".join(self._events.last())
        if self._is_whole:
            await self._answer.send(write_json(self._events.response), JSON)
        else:
            await self._answer.start_stream()
            await self._answer.end(events)


class ResponseEvents:
    """The server-sent events of one response, and the response so far."""

    def __init__(self, head: Json) -> None:
        self.response: Json = {**head, "status": "in_progress", "error": None, "incomplete_details": None, "output": []}
        self._num_events = 0
        # Index in the chat of the call that the last item of the output is.
        self._call: int | None = None
        self._finish_reason: str | None = None

    def of(self, chunk: Json) -> Iterator[bytes]:
        """The events of a chunk of the chat."""
        if "id" not in self.response:
            number = str(chunk["id"]).partition("-")[2].replace("-", "")
            self.response |= {"id": f"resp_{number}", "created_at": chunk["created"], "usage": None}
            yield self._event("created", response=self.response)
            yield self._event("in_progress", response=self.response)
        self.response |= {name: chunk[name] for name in _EXTENSIONS if chunk.get(name)}
        if chunk.get("usage"):
            self.response["usage"] = _usage(chunk["usage"])
        for choice in chunk.get("choices") or []:
            delta, log_probs = choice.get("delta") or {}, (choice.get("logprobs") or {}).get("content") or []
            if delta.get("content") or log_probs:
                yield from self._text(delta.get("content") or "", log_probs)
            for call in delta.get("tool_calls") or []:
                yield from self._arguments(call)
            self._finish_reason = choice.get("finish_reason") or self._finish_reason

    def _text(self, text: str, log_probs: list[Json]) -> Iterator[bytes]:
        output = self.response["output"]
        if not output or output[-1]["type"] != "message":
            yield from self._close("completed")
            self._call = None
            yield from self._open("msg", type="message", role="assistant", content=[])
            output[-1]["content"].append({"type": "output_text", "text": "", "annotations": [], "logprobs": []})
            yield self._of_part("content_part.added", part=output[-1]["content"][0])
        part = output[-1]["content"][0]
        part["text"] += text
        part["logprobs"] += log_probs
        yield self._of_part("output_text.delta", delta=text, logprobs=log_probs)

    def _arguments(self, call: Json) -> Iterator[bytes]:
        """The events of a part of a call. The first part has its id and its name."""
        function = call.get("function") or {}
        if call.get("index", 0) != self._call:
            yield from self._close("completed")
            self._call = call.get("index", 0)
            names = {"call_id": call["id"], "name": function["name"]}
            yield from self._open("fc", type="function_call", **names, arguments="")
        if text := function.get("arguments"):
            self.response["output"][-1]["arguments"] += text
            yield self._of_item("function_call_arguments.delta", delta=text)

    def last(self) -> Iterator[bytes]:
        """The events after the last chunk."""
        is_cut = self._finish_reason == "length"
        status = "incomplete" if is_cut else "completed"
        yield from self._close(status)
        self.response["status"] = status
        if is_cut:
            self.response["incomplete_details"] = {"reason": "max_output_tokens"}
        else:
            self.response["completed_at"] = int(time.time())
        yield self._event(status, response=self.response)

    def _open(self, prefix: str, **members: Any) -> Iterator[bytes]:
        """Begin an item of the output."""
        output = self.response["output"]
        number = f"{self.response['id'].removeprefix('resp_')}_{len(output)}"
        output.append({"id": f"{prefix}_{number}", "status": "in_progress", **members})
        yield self._event("output_item.added", output_index=len(output) - 1, item=output[-1])

    def _close(self, status: str) -> Iterator[bytes]:
        """End the last item of the output, if any."""
        if not (output := self.response["output"]):
            return
        item = output[-1]
        item["status"] = status
        if item["type"] == "message":
            part = item["content"][0]
            yield self._of_part("output_text.done", text=part["text"], logprobs=part["logprobs"])
            yield self._of_part("content_part.done", part=part)
        else:
            yield self._of_item("function_call_arguments.done", name=item["name"], arguments=item["arguments"])
        yield self._event("output_item.done", output_index=len(output) - 1, item=item)

    def _of_part(self, kind: str, **members: Any) -> bytes:
        return self._of_item(kind, content_index=0, **members)

    def _of_item(self, kind: str, **members: Any) -> bytes:
        output = self.response["output"]
        return self._event(kind, item_id=output[-1]["id"], output_index=len(output) - 1, **members)

    def _event(self, kind: str, **members: Any) -> bytes:
        name = f"response.{kind}"
        event = event_of({"type": name, "sequence_number": self._num_events, **members})
        self._num_events += 1
        return f"event: {name}\n".encode() + event


def _usage(usage: Json) -> Json:
    """Usage in the names of the Responses API. usage: of a chat."""
    inputs, outputs = usage.get("prompt_tokens_details") or {}, usage.get("completion_tokens_details") or {}
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0, **inputs},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0, **outputs},
        "total_tokens": usage["total_tokens"],
    }
