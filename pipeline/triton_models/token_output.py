"""Selects the output tokens that can be sent: no token that may belong to a stop word, and only whole characters.

A client that decodes the tokens itself would otherwise show the beginning of a stop word. If the output continues on
another server, it would lose a character whose tokens come partly from each. The part of a token before a stop word is
spelled with other tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipeline.triton_models.text_codec import TextCodec
from pipeline.triton_models.text_stream import TextStream

# Number of earlier tokens that decide how the next ones are decoded.
_CONTEXT_TOKENS = 8


class TokenOutput:
    """Tokens of one output. text: finds its stop words. resumed_ids: output of an earlier run, already sent."""

    def __init__(self, codec: TextCodec, text: TextStream, resumed_ids: Sequence[int] = ()) -> None:
        self._codec = codec
        self._text = text
        self._sent = list(resumed_ids[-_CONTEXT_TOKENS:])
        self._kept: list[int] = []
        self._shown = ""
        for token in self._sent:  # the bytes of a character may continue
            self._text.push(token)

    def push(self, token_id: int) -> list[int]:
        """Take one token; the tokens that can be sent now."""
        self._shown += self._text.push(token_id)
        self._kept.append(token_id)
        if self._text.stopped:
            return self._release(self._spelled(self._shown))
        return [] if self._text.is_holding else self._release(self._kept)

    def finish(self, end_ids: Sequence[int] = ()) -> list[int]:
        """Return the tokens held back, once no more tokens come. end_ids: an end token that follows."""
        self._shown += self._text.finish()
        kept = self._spelled(self._shown) if self._text.stopped else [*self._kept, *end_ids]
        return self._release(kept)

    def _release(self, ids: list[int]) -> list[int]:
        self._sent = [*self._sent, *ids][-_CONTEXT_TOKENS:]
        self._kept, self._shown = [], ""
        return ids

    def _spelled(self, text: str) -> list[int]:
        """Tokens that spell a text, appended to those already sent."""
        if not text:
            return []
        before = self._codec.decode(self._sent)
        for ids in self._spellings(text):
            if self._codec.decode([*self._sent, *ids]) == before + text:
                return ids
        return []  # a tokenizer without tokens for single bytes cannot spell it

    def _spellings(self, text: str) -> Iterator[list[int]]:
        whole = len(self._kept)
        for count in range(whole, -1, -1):  # the longest beginning of the kept tokens that is part of the text
            head = self._codec.decode([*self._sent, *self._kept[:count]])[len(self._codec.decode(self._sent)) :]
            if text.startswith(head):
                rest = text[len(head) :]
                yield self._kept[:count] + self._codec.encode(rest, add_special_tokens=False).tolist()
                tokens = [f"<0x{byte:02X}>" for byte in rest.encode()]
                found = self._codec.tokenizer.convert_tokens_to_ids(tokens)
                if None not in found:
                    yield self._kept[:count] + found
