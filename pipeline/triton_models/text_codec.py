"""Conversion between text and token ids with the tokenizer of an artifact."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.decoding.sampling_checks import is_finite
from pipeline.decoding.tree import FloatArray, IntArray
from pipeline.engine.admission import require_tokens
from pipeline.errors import RepositoryError, RequestError
from pipeline.heap import trim_heap
from pipeline.triton_models.text_stream import is_byte_token

# Tokens on each side of the end of a prompt that decide whether white space is between them.
NUM_JOINED = 8
ROLES = ("system", "developer", "user", "assistant", "tool")


class TextCodec:
    """A tokenizer with the conversions that a server needs. end_ids: tokens that end an output. special_ids: tokens
    that text omits."""

    def __init__(self, tokenizer: Any, end_ids: frozenset[int], vocab_size: int) -> None:
        self.tokenizer = tokenizer
        self.end_ids = end_ids
        self.vocab_size = vocab_size
        self.special_ids = frozenset(index for index, token in tokenizer.added_tokens_decoder.items() if token.special)

    @property
    def end_id(self) -> int:
        """The tokenizer's end token; -1, TensorRT-LLM's value for none, if it has none."""
        return -1 if self.tokenizer.eos_token_id is None else int(self.tokenizer.eos_token_id)

    @property
    def pad_id(self) -> int:
        return self.end_id if self.tokenizer.pad_token_id is None else int(self.tokenizer.pad_token_id)

    def encode(self, text: str, add_special_tokens: bool = True) -> IntArray:
        """[len] token ids of a text. Raises RequestError if it contains an invalid character."""
        check_text(text, "the text")
        return np.asarray(self.tokenizer.encode(text, add_special_tokens=add_special_tokens), np.int32)

    def chat_text(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Prompt of a conversation, with special tokens, up to the assistant's turn. Raises RequestError if the model
        has no chat template or the template refuses these messages."""
        if not self.tokenizer.chat_template:
            raise RequestError("this model has no chat template; send a plain prompt (text_input, completions API)")
        try:
            text = self.tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        except Exception as error:  # a template may raise any type, and does so to refuse a conversation
            raise RequestError(f"the chat template does not take these messages: {error}") from error
        return str(text)

    def encode_words(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(self.encode(word, add_special_tokens=False).tolist()) for word in words if word)

    def special_words(self, words: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
        """Words that consist of a single special token. Text omits them, so they must be searched for among tokens."""
        return tuple(ids for ids in words if len(ids) == 1 and ids[0] in self.special_ids)

    def embedding_bias(self, words: Sequence[str], weights: Sequence[float]) -> FloatArray | None:
        """[vocab] bias that adds each word's weight to all of its tokens; None without words. Raises RequestError if
        the numbers of words and weights differ, a weight is not finite, or a word has a token that the model lacks."""
        if not words:
            return None
        if len(words) != len(weights):
            raise RequestError(
                f"embedding_bias_words has {len(words)} words, embedding_bias_weights {len(weights)} weights; send one "
                "weight per word"
            )
        for weight in weights:
            if not is_finite(weight):
                raise RequestError(f"embedding_bias_weights holds {weight}; they must be finite numbers of 32 bits")
        bias = np.zeros(self.vocab_size, np.float32)
        for word, weight in zip(self.encode_words(words), weights, strict=True):
            require_tokens(np.asarray(word, np.int32), self.vocab_size, "embedding_bias_words")
            bias[list(set(word))] += weight
        return bias

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of token ids, without clean-up of spaces."""
        text: str = self.tokenizer.decode(
            list(token_ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
        return text

    def is_byte(self, token_id: int) -> bool:
        """Whether a token is a single byte of a tokenizer with byte fallback."""
        return is_byte_token(self.tokenizer.convert_ids_to_tokens(token_id))

    def space_between(self, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> str:
        """The white space at the start of an output that `decode` drops without the prompt, as tokenizers of
        SentencePiece and WordPiece do; often none."""
        before, output = (list(ids) for ids in (prompt_ids[-NUM_JOINED:], output_ids[:NUM_JOINED]))
        start, alone, whole = (self.decode(ids) for ids in (before, output, before + output))
        space = whole.removeprefix(start).removesuffix(alone)
        return space if space.isspace() else ""


def check_text(text: str, name: str) -> None:
    """Raise RequestError if a text holds lone surrogates, which are not characters. JSON can contain them, and Python
    decodes bytes that are not UTF-8 to them. name: name of the text in the message."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{name} holds {text[error.start]!a}, half of a surrogate pair or a byte that is not UTF-8, which is no "
            "character; send whole characters in UTF-8"
        ) from error


def load_codec(tokenizer_dir: Path, engine_dir: Path | None = None, vocab_size: int | None = None) -> TextCodec:
    """Load the codec of an artifact. engine_dir: folder whose generation_config.json may name more end tokens.
    vocab_size: by default the tokenizer's. Raises RepositoryError if the tokenizer cannot be loaded."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(tokenizer_dir, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise RepositoryError(f"The tokenizer in {tokenizer_dir} cannot be loaded: {error}") from error
    trim_heap()
    end_ids = set() if tokenizer.eos_token_id is None else {int(tokenizer.eos_token_id)}
    if engine_dir is not None and (path := engine_dir / "generation_config.json").is_file():
        named = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
        end_ids |= set(named) if isinstance(named, list) else {named} - {None}
    vocab_size = len(tokenizer) if vocab_size is None else vocab_size
    # Many models' files name the default end token of their config class, which may lie outside the vocabulary.
    return TextCodec(tokenizer, frozenset(end for end in end_ids if 0 <= end < vocab_size), vocab_size)


def parse_messages(text: str) -> list[dict[str, Any]]:
    """Parse a conversation: a JSON list of {"role", "content"}, both text. A message with tool_calls needs no content.
    Raises RequestError if it is invalid."""
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
