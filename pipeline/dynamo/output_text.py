"""Text of an output, which the worker sends beside its tokens.

Dynamo's front end forwards such a text unchanged. Its own detokenizer (1.4.2) panics if a new token changes text that
it has counted already, and drops the end of an output that ends within a character.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import takewhile
from pathlib import Path

from tokenizers import Tokenizer

from pipeline.checkpoint.tokenizer_files import VOCABULARY
from pipeline.triton_models.tensors import Array
from pipeline.triton_models.text_stream import REPLACEMENT, TextStream, is_byte_token


class CardTokenizer:
    """Tokenizer of a model card. special_ids: tokens that text omits; none if keeps_special."""

    def __init__(self, tokenizer: Tokenizer, keeps_special: bool = False) -> None:
        self.keeps_special = keeps_special
        self._tokenizer = tokenizer
        added = {} if keeps_special else tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(token for token, description in added.items() if description.special)

    @classmethod
    def load(cls, card_dir: Path) -> CardTokenizer:
        return cls(Tokenizer.from_file(str(card_dir / VOCABULARY)))

    def with_special(self) -> CardTokenizer:
        """The same tokenizer for texts with special tokens."""
        return CardTokenizer(self._tokenizer, keeps_special=True)

    def decode(self, token_ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=not self.keeps_special)
        return text

    def is_byte(self, token_id: int) -> bool:
        return is_byte_token(self._tokenizer.id_to_token(token_id))


class OutputText:
    """Text of one output. prompt_ids, resumed_ids: the prompt, and the earlier part of the output, already sent.
    hidden_ids: tokens that have no text, such as end tokens."""

    def __init__(
        self, tokenizer: CardTokenizer, prompt_ids: Array, resumed_ids: Array, hidden_ids: Collection[int]
    ) -> None:
        self._stream = TextStream(tokenizer)
        self._hidden_ids = hidden_ids
        # The tokens before an output decide whether it begins with white space. If they end within a character that the
        # output completes, the output has the whole character.
        ids = prompt_ids.tolist()
        self._stream.resume(ids)
        self._of_prompt = self._stream.held
        visible = (token for token in reversed(ids) if token not in tokenizer.special_ids)
        self._num_bytes = sum(1 for _ in takewhile(tokenizer.is_byte, visible))
        self.push(resumed_ids.tolist())

    def push(self, token_ids: Sequence[int], is_last: bool = False) -> list[str]:
        """Add tokens. Returns the text that each of them completes. If is_last, the last token that is not hidden has
        the rest too; without one, the rest is the first item."""
        texts = ["" if token in self._hidden_ids else self._own(self._stream.push(token)) for token in token_ids]
        if is_last and (rest := self._own(self._stream.finish())):
            place = next((n for n, token in reversed([*enumerate(token_ids)]) if token not in self._hidden_ids), None)
            if place is None:
                return [rest, *texts]
            texts[place] += rest
        return texts

    def _own(self, text: str) -> str:
        """The text without what belongs to the prompt."""
        if not text or not self._of_prompt:
            return text
        of_prompt, self._of_prompt = self._of_prompt, ""
        # Byte tokens are decoded with those of the output, as a whole: all are replaced if one is invalid.
        for part in (of_prompt, REPLACEMENT * self._num_bytes):
            if text.startswith(part):
                return text[len(part) :]
        return text.removeprefix(text.encode()[: self._num_bytes].decode(errors="ignore"))
