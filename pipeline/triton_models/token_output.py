"""Selects the output tokens that can be sent: no token that may belong to a stop word, and only complete characters.

Otherwise a client that decodes the tokens would show the beginning of a stop word. An output that continues on another
server would lose a character whose tokens come from both. If a token has text before a stop word, other tokens with
this text are sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipeline.triton_models.text_codec import TextCodec
from pipeline.triton_models.text_stream import CONTEXT_TOKENS, TextStream


class TokenOutput:
    """Tokens of one output. text: finds stop words. resumed_ids: earlier part of the output, already sent by another
    run."""

    def __init__(self, codec: TextCodec, text: TextStream, resumed_ids: Sequence[int] = ()) -> None:
        self._codec = codec
        self._text = text
        self._sent = list(resumed_ids[-CONTEXT_TOKENS:])
        self._kept: list[int] = []
        self._shown = ""
        self._text.resume(resumed_ids)

    def push(self, token_id: int) -> list[int]:
        """Add one token. Returns the tokens that can be sent now."""
        self._shown += self._text.push(token_id)
        self._kept.append(token_id)
        if self._text.stopped:
            return self._release(self._spelled(self._shown))
        return [] if self._text.is_holding else self._release(self._kept)

    def finish(self, end_ids: Sequence[int] = ()) -> list[int]:
        """Return the tokens held back, after the last token. end_ids: end token to append, if any."""
        self._shown += self._text.finish()
        kept = self._spelled(self._shown) if self._text.stopped else [*self._kept, *end_ids]
        return self._release(kept)

    def _release(self, ids: list[int]) -> list[int]:
        self._sent = [*self._sent, *ids][-CONTEXT_TOKENS:]
        self._kept, self._shown = [], ""
        return ids

    def _spelled(self, text: str) -> list[int]:
        """Tokens that decode to `text` after the tokens already sent; none if the tokenizer cannot spell it."""
        if not text:
            return []
        before = self._codec.decode(self._sent)
        for ids in self._spellings(text):
            if self._codec.decode([*self._sent, *ids]) == before + text:
                return ids
        return []  # a tokenizer without tokens for single bytes cannot spell it

    def _spellings(self, text: str) -> Iterator[list[int]]:
        whole = len(self._kept)
        for count in range(whole, -1, -1):  # prefer the longest prefix of the kept tokens that fits the text
            head = self._codec.decode([*self._sent, *self._kept[:count]])[len(self._codec.decode(self._sent)) :]
            if text.startswith(head):
                rest = text[len(head) :]
                yield self._kept[:count] + self._codec.encode(rest, add_special_tokens=False).tolist()
                tokens = [f"<0x{byte:02X}>" for byte in rest.encode()]
                found = self._codec.tokenizer.convert_tokens_to_ids(tokens)
                if None not in found:
                    yield self._kept[:count] + found
