"""Text to token ids and back, with the tokenizer of an artefact."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.decoding.sampling import is_finite
from pipeline.decoding.tree import FloatArray, IntArray
from pipeline.errors import RepositoryError, RequestError
from pipeline.triton_models.token_bytes import TokenBytes, token_bytes

ROLES = ("system", "developer", "user", "assistant", "tool")


class TextCodec:
    """A tokenizer, and what a server needs of it. end_ids: tokens that end an output. special_ids: tokens
    that text does not show."""

    def __init__(self, tokenizer: Any, end_ids: frozenset[int], vocab_size: int) -> None:
        self.tokenizer = tokenizer
        self.end_ids = end_ids
        self.vocab_size = vocab_size
        self.special_ids = frozenset(index for index, token in tokenizer.added_tokens_decoder.items() if token.special)

    @property
    def end_id(self) -> int:
        """The end token for TensorRT-LLM; -1 if the tokenizer has none."""
        return -1 if self.tokenizer.eos_token_id is None else int(self.tokenizer.eos_token_id)

    @property
    def pad_id(self) -> int:
        return self.end_id if self.tokenizer.pad_token_id is None else int(self.tokenizer.pad_token_id)

    @cached_property
    def token_bytes(self) -> TokenBytes | None:
        """Upper bound of text bytes per token, if known."""
        return token_bytes(self.tokenizer)

    def encode(self, text: str, add_special_tokens: bool = True) -> IntArray:
        """[len] token ids of a text. Raises RequestError if it contains an invalid character."""
        check_text(text, "the text")
        return np.asarray(self.tokenizer.encode(text, add_special_tokens=add_special_tokens), np.int32)

    def chat_text(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """A conversation as the model's prompt, ready for the assistant's turn, special tokens included. Raises
        RequestError if the model has no chat template or it does not take these messages."""
        if not self.tokenizer.chat_template:
            raise RequestError("this model has no chat template; send a plain prompt (text_input, completions API)")
        try:
            text = self.tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        except Exception as error:  # templates raise what they like: it is the conversation that they refuse
            raise RequestError(f"the chat template does not take these messages: {error}") from error
        return str(text)

    def encode_words(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(self.encode(word, add_special_tokens=False).tolist()) for word in words if word)

    def special_words(self, words: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
        """Token ids of the words that are a single special token: no text shows these, so they are searched for in
        tokens."""
        return tuple(ids for ids in words if len(ids) == 1 and ids[0] in self.special_ids)

    def embedding_bias(self, words: Sequence[str], weights: Sequence[float]) -> FloatArray | None:
        """[vocab] bias that adds each word's weight to all of its tokens; None without words."""
        if len(words) != len(weights):
            raise RequestError(
                f"embedding_bias_words has {len(words)} words, embedding_bias_weights {len(weights)} weights"
            )
        if not words:
            return None
        for weight in weights:
            if not is_finite(weight):
                raise RequestError(f"embedding_bias_weights holds {weight}; they must be finite numbers of 32 bits")
        bias = np.zeros(self.vocab_size, np.float32)
        for word, weight in zip(self.encode_words(words), weights, strict=True):
            bias[list(set(word))] += weight
        return bias

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of token ids, exactly as the tokens spell it."""
        text: str = self.tokenizer.decode(
            list(token_ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
        return text


def check_text(text: str, name: str) -> None:
    """Raise RequestError if a text holds lone surrogates: JSON can spell them, and bytes that are not UTF-8 are read as
    such, but they are no characters. name: of the text, for the message."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{name} holds {text[error.start]!a}, half of a surrogate pair or a byte that is not UTF-8, which is no "
            "character; send whole characters in UTF-8"
        ) from error


def load_codec(tokenizer_dir: Path, engine_dir: Path | None = None, vocab_size: int | None = None) -> TextCodec:
    """The codec of an artefact. engine_dir: its generation_config.json may name more end tokens.

    Raises RepositoryError if the tokenizer cannot be loaded."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(tokenizer_dir, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise RepositoryError(f"The tokenizer in {tokenizer_dir} cannot be loaded: {error}") from error
    _trim_heap()
    end_ids = set() if tokenizer.eos_token_id is None else {int(tokenizer.eos_token_id)}
    if engine_dir is not None and (path := engine_dir / "generation_config.json").is_file():
        named = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
        end_ids |= set(named) if isinstance(named, list) else {named} - {None}
    vocab_size = len(tokenizer) if vocab_size is None else vocab_size
    # A config class's own end token is in the files of many models with a smaller vocabulary, which never produce it.
    return TextCodec(tokenizer, frozenset(end for end in end_ids if 0 <= end < vocab_size), vocab_size)


def _trim_heap() -> None:
    """Give freed memory back to the system: reading a tokenizer leaves some 25 MB of it unused until the
    process ends. Does nothing without glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def parse_messages(text: str) -> list[dict[str, Any]]:
    """A conversation from JSON. Raises RequestError unless it is a list of {"role", "content"} with text in both. A
    message with tool_calls needs no content."""
    try:
        messages = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"messages is not valid JSON: {error}") from error
    if not isinstance(messages, list) or not messages:
        raise RequestError('messages must be a list like [{"role": "user", "content": "..."}] with at least one entry')
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not (isinstance(message.get("content"), str) or message.get("tool_calls")):
            raise RequestError(f'messages[{index}] must be an object with "role" and "content", both text')
        if message.get("role") not in ROLES:
            raise RequestError(
                f"messages[{index}] has role {message.get('role')!r}; it must be one of {', '.join(ROLES)}"
            )
    return messages
