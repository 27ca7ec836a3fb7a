"""Incremental decoding: emits only text that later tokens cannot change, and no part of a stop word.

The concatenated chunks equal the decoded output up to the first stop word. Two parts are held back:

* Bytes of incomplete characters. Byte-level tokenizers split characters over tokens. Decoders with byte fallback
  (`<0xE4>`) interpret a whole run of byte tokens differently if it is invalid, so a run is emitted after its end.
* A suffix of the text that may be the beginning of a stop word.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol

# Number of earlier tokens that decide how the next ones are decoded.
CONTEXT_TOKENS = 8
REPLACEMENT = "\ufffd"
_BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")


def is_byte_token(token: object) -> bool:
    """Whether a tokenizer's name of a token is that of a single byte."""
    return isinstance(token, str) and _BYTE_TOKEN.fullmatch(token) is not None


class Decoder(Protocol):
    """Tokenizer of a `TextStream`. special_ids: tokens that text omits. is_byte: see `is_byte_token`."""

    @property
    def special_ids(self) -> frozenset[int]: ...

    def decode(self, token_ids: Sequence[int], /) -> str: ...

    def is_byte(self, token_id: int, /) -> bool: ...


class TextStream:
    """Text of one output, which ends before the first of stop_words. stopped: whether a stop word was found. As in
    vLLM, a stop word that is complete after the first min_tokens tokens or before is text."""

    def __init__(self, codec: Decoder, stop_words: Sequence[str] = (), min_tokens: int = 0) -> None:
        self.stopped = False
        self._codec = codec
        self._stop_words = sorted(word for word in stop_words if word)
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self._ids: list[int] = []
        # _ids[:_shown] has been decoded. Tokens from _context on are decoded again with the next ones, because the text
        # of a token depends on the tokens before it.
        self._context = 0
        self._shown = 0
        self._held = ""

    def resume(self, token_ids: Sequence[int]) -> None:
        """Continue an output that begins with these tokens, and whose text until there is not emitted again."""
        start = max(0, len(token_ids) - CONTEXT_TOKENS)
        while start > 0 and (self._codec.is_byte(token_ids[start]) or token_ids[start] in self._codec.special_ids):
            start -= 1  # a run of byte tokens is decoded as a whole
        self._num_tokens = start
        last = [token for token in token_ids[start:] if token not in self._codec.special_ids]
        is_whole = last and not self._codec.is_byte(last[-1]) and not self._codec.decode(last).endswith(REPLACEMENT)
        if is_whole and not self._stop_words:  # the usual case of a worker, without decoding each token
            self._ids, self._shown = last, len(last)
            return
        for token in token_ids[start:]:  # the last character may be incomplete
            self.push(token)

    def push(self, token_id: int) -> str:
        """Add one token. Returns the text that can be emitted now, which may be empty; after a stop word it is."""
        self._num_tokens += 1
        if self.stopped or token_id in self._codec.special_ids:
            return ""
        self._ids.append(token_id)
        if self._codec.is_byte(token_id):
            return ""
        new = self._decoded()
        if new.endswith(REPLACEMENT):
            return ""
        return self._show(new)

    @property
    def is_holding(self) -> bool:
        """Whether some text is held back."""
        return bool(self._held) or self._shown < len(self._ids)

    @property
    def held(self) -> str:
        """The text held back, as far as it is known."""
        return self._held + self._decoded()

    def finish(self) -> str:
        """Return the text held back, after the last token."""
        text = self._show(self._decoded())
        rest, self._held = self._held, ""
        return text + rest

    def _decoded(self) -> str:
        """Text of the tokens that have not been decoded."""
        before = self._codec.decode(self._ids[self._context : self._shown])
        whole = self._codec.decode(self._ids[self._context :])
        return whole[len(before) :]

    def _show(self, new: str) -> str:
        self._context, self._shown = self._shown, len(self._ids)
        text, num_old = self._held + new, len(self._held)
        # The stop word that is complete first ends the output; of several with the same end, the longest. One within
        # the text that was held back came before min_tokens.
        words = self._stop_words if self._num_tokens > self._min_tokens else ()
        starts = ((word, text.find(word, max(0, num_old - len(word) + 1))) for word in words)
        ends = [(start + len(word), start) for word, start in starts if start >= 0]
        if ends:
            self.stopped = True
            self._held = ""
            return text[: min(ends)[1]]
        keep = self._length_to_hold(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def _length_to_hold(self, text: str) -> int:
        """Length of the longest suffix of text that is a prefix of a stop word."""
        words = self._stop_words
        longest = max((len(word) - 1 for word in words), default=0)
        for length in range(min(longest, len(text)), 0, -1):
            # Both can be long, so words are not compared one by one. Those with a prefix follow it in sorted order.
            place = bisect_left(words, text[-length:])
            if place < len(words) and words[place].startswith(text[-length:]):
                return length
        return 0
