"""Continues the response to an OpenAI request after all its workers, or the front end, have died.

The same request is sent again. Its output consists of the same tokens, because the sampling noise depends only on the
seed and the absolute position of a token, and the seed only on the request. Chunks may be cut at other places, so the
part that the client has is left out by length of text and number of tokens, not by chunks.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.gateway.bodies import Json


@dataclass(slots=True)
class _SentPart:
    """Length of a part of the output. num_tokens: tokens that have log probabilities."""

    num_chars: int = 0
    num_tokens: int = 0
    is_finished: bool = False


class Resumption:
    """Removes the part that the client has from the chunks of one response. After `resume` the response comes again
    from its start."""

    def __init__(self) -> None:
        self._is_resumed = False
        # Whether the part that was sent can be left out of the same response. Ids of tool calls, for example, differ.
        self._is_resumable = True
        self._head: Json = {}
        self._sent, self._seen = _SentPart(), _SentPart()

    def resume(self) -> bool:
        """Expect the response again. Returns False if the client has a part that cannot be left out."""
        self._is_resumed = bool(self._head)
        self._seen = _SentPart()
        return self._is_resumable

    def rest_of(self, chunk: Json) -> Json | None:
        """The part of a chunk that the client does not have; None if it has all."""
        choices = chunk.get("choices") or []
        rests = [rest for choice in choices if (rest := self._rest_of_choice(choice)) is not None]
        if not self._is_resumed:
            self._head = self._head or {"id": chunk.get("id"), "created": chunk.get("created")}
            return chunk
        return chunk | self._head | {"choices": rests} if rests or not choices else None

    def _rest_of_choice(self, choice: Json) -> Json | None:
        """The part of a choice that the client does not have; None if it has all."""
        sent, seen = self._sent, self._seen
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
        self._sent = _SentPart(max(sent.num_chars, seen.num_chars), max(sent.num_tokens, seen.num_tokens), is_last)
        rest = {name: text[old_chars:]}
        left = {key: values[old_tokens:] if isinstance(values, list) else values for key, values in log_probs.items()}
        return choice | (rest if delta is None else {"delta": delta | rest}) | ({"logprobs": left} if log_probs else {})
