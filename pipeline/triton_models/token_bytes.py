"""Upper bound on bytes per token, to reject long prompts before tokenizing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

# Tokenizer steps that never shorten the text. "Replace" and "Split" are checked by their options.
_KEEPING_NORMALIZERS = frozenset({"Prepend", "ByteLevel"})
_KEEPING_PRE_TOKENIZERS = frozenset({"ByteLevel", "Digits", "Metaspace"})
# Normalizers that shorten UTF-8 by a factor of at most 3.5 (NFC) and 4 (NFKC), over all characters of Unicode.
_COMPOSING_NORMALIZERS = frozenset({"NFC", "NFKC"})
_COMPOSED = 4
# All bytes that occur in characters of white space.
_SPACE_BYTES = bytes(sorted({byte for code in range(0x3001) if chr(code).isspace() for byte in chr(code).encode()}))


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """most: maximum bytes of UTF-8 per token, without the bytes in `ignored`."""

    most: int
    ignored: bytes = b""

    def fewest_tokens(self, text: str) -> int:
        """Lower bound of the number of tokens of a text."""
        counted = text.encode(errors="surrogatepass").translate(None, self.ignored)
        return -(-len(counted) // self.most)


def token_bytes(tokenizer: Any) -> TokenBytes | None:
    """Bound of a tokenizer. None if it has no known one, for example because it drops characters or maps unknown words
    of any length to one token."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    parts = json.loads(backend.to_str())
    vocab = backend.get_vocab(with_added_tokens=True)
    normalizers, pre_tokenizers = list(_steps(parts["normalizer"])), list(_steps(parts["pre_tokenizer"]))
    composes = any(step["type"] in _COMPOSING_NORMALIZERS for step in normalizers)
    if not all(
        step["type"] in _KEEPING_NORMALIZERS | _COMPOSING_NORMALIZERS or _replaces_without_shortening(step)
        for step in normalizers
    ):
        return None
    if not all(step["type"] in _KEEPING_PRE_TOKENIZERS or _splits_only(step) for step in pre_tokenizers):
        return None
    unknown = _unknown_bytes(parts["model"], vocab, any(s["type"] == "ByteLevel" for s in normalizers + pre_tokenizers))
    if unknown is None:
        return None
    takes_spaces = any(token["lstrip"] or token["rstrip"] for token in parts["added_tokens"])
    ignored = unknown + (_SPACE_BYTES if takes_spaces else b"")
    if composes and ignored:  # composition may turn other bytes into ignored ones
        return None
    # A token has at least one character per byte of its text.
    return TokenBytes((_COMPOSED if composes else 1) * max(len(token.encode()) for token in vocab), ignored)


def _steps(entry: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """The steps of a normalizer or pre-tokenizer, with sequences flattened."""
    if entry is not None and entry["type"] == "Sequence":
        for inner in entry.get("normalizers") or entry.get("pretokenizers") or ():
            yield from _steps(inner)
    elif entry is not None:
        yield entry


def _replaces_without_shortening(step: Mapping[str, Any]) -> bool:
    pattern = step.get("pattern", {}).get("String") if step["type"] == "Replace" else None
    return pattern is not None and len(step["content"].encode()) >= len(pattern.encode())


def _splits_only(step: Mapping[str, Any]) -> bool:
    return step["type"] in ("Split", "Punctuation") and step["behavior"] != "Removed"


def _unknown_bytes(model: Mapping[str, Any], vocab: Mapping[str, int], is_byte_level: bool) -> bytes | None:
    """Bytes without a token of their own: the model drops them, or maps several to one "unknown" token. None if units
    other than bytes can be unknown."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    if model["type"] != "BPE":
        return None
    if is_byte_level:
        return bytes(byte for byte, letter in bytes_to_unicode().items() if letter not in vocab)
    complete = model["byte_fallback"] and all(f"<0x{byte:02X}>" in vocab for byte in range(256))
    return b"" if complete else None
