"""Continues the response to an OpenAI request after all its workers, or the front end, have died.

The same request is sent again. Its output consists of the same tokens, because the sampling noise depends only on the
seed and the absolute position of a token, and the seed only on the request. Chunks may be cut at other places, so the
part that the client has is left out by length of text and number of tokens, not by events.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.gateway.bodies import Json
from pipeline.gateway.event_stream import chunk_of, event_of, events_of
from pipeline.gateway.refusal import Refusal
from pipeline.gateway.response_writer import Responder


@dataclass(slots=True)
class _Output:
    """Part of a choice's output. num_tokens: of those with log probabilities."""

    num_chars: int = 0
    num_tokens: int = 0
    is_finished: bool = False


class ResumableResponder:
    """Forwards one response to `answer`. After `resume`, the response comes again from its start, and only its new part
    is forwarded."""

    def __init__(self, answer: Responder) -> None:
        self._answer = answer
        self._is_started = self._is_stream = self._is_resumed = False
        # Whether the part that was sent can be left out of the same response. Ids of tool calls, for example, differ.
        self._is_resumable = self._is_readable = True
        self._head: Json = {}
        self._sent, self._seen = defaultdict[int, _Output](_Output), defaultdict[int, _Output](_Output)

    def resume(self) -> bool:
        """Expect the response again. Returns False if the client has a part that cannot be left out."""
        self._is_resumed = self._is_started
        self._seen.clear()
        return not self._is_started or (self._is_stream and self._is_readable and self._is_resumable)

    async def start(self, status: int, headers: Mapping[str, str], is_stream: bool = False) -> None:
        if not self._is_started:
            self._is_started, self._is_stream = True, is_stream
            await self._answer.start(status, headers, is_stream)

    async def piece(self, data: bytes) -> None:
        if self._is_stream:
            # After a part of a long event, a piece may begin within an event.
            self._is_readable = self._is_readable and data.endswith(b"\n\n")
            if self._is_readable:
                data = b"".join(map(self._rest_of_event, events_of(data)))
        if data:
            await self._answer.piece(data)

    async def end(self) -> None:
        await self._answer.end()

    async def refuse(self, refusal: Refusal, closes: bool = False) -> None:
        await self._answer.refuse(refusal, closes)

    def _rest_of_event(self, event: bytes) -> bytes:
        """The part of an event that the client does not have; empty if it has all."""
        if (chunk := chunk_of(event)) is None:
            return event
        choices = chunk.get("choices") or []
        rests = [rest for choice in choices if (rest := self._rest_of_choice(choice)) is not None]
        if not self._is_resumed:
            self._head = self._head or {name: chunk[name] for name in ("id", "created") if name in chunk}
            return event
        if choices and not rests:
            return b""
        return event_of(chunk | self._head | {"choices": rests})

    def _rest_of_choice(self, choice: Json) -> Json | None:
        """The part of a choice that the client does not have; None if it has all."""
        index = choice.get("index", 0)
        sent, seen = self._sent[index], self._seen[index]
        if sent.is_finished:
            return None
        delta = choice.get("delta")
        fields, name = (choice, "text") if delta is None else (delta, "content")
        has_others = delta is not None and any(value for key, value in delta.items() if key not in ("role", "content"))
        self._is_resumable = self._is_resumable and not has_others
        text, log_probs = fields.get(name) or "", choice.get("logprobs") or {}
        num_tokens = max((len(values) for values in log_probs.values() if isinstance(values, list)), default=0)
        # Number of characters and tokens of this chunk that the client has.
        old_chars, old_tokens = sent.num_chars - seen.num_chars, sent.num_tokens - seen.num_tokens
        seen.num_chars += len(text)
        seen.num_tokens += num_tokens
        is_last = choice.get("finish_reason") is not None
        if len(text) <= old_chars and num_tokens <= old_tokens and not is_last and not has_others:
            return None
        self._sent[index] = _Output(max(sent.num_chars, seen.num_chars), max(sent.num_tokens, seen.num_tokens), is_last)
        if not self._is_resumed:  # the event is forwarded as it is
            return choice
        rest = {name: text[old_chars:]}
        left = {key: values[old_tokens:] if isinstance(values, list) else values for key, values in log_probs.items()}
        return choice | (rest if delta is None else {"delta": delta | rest}) | ({"logprobs": left} if log_probs else {})
