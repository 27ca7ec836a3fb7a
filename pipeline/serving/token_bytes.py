"""How much text one token can stand for: what is longer than that times the tokens that fit need not be tokenised to
know that it does not fit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

# Steps in front of the model that keep every character of the text, or make more of it. "Replace" and "Split" may.
_KEEPING_NORMALIZERS = frozenset({"Prepend", "ByteLevel"})
_KEEPING_PRE_TOKENIZERS = frozenset({"ByteLevel", "Digits", "Metaspace"})
# Steps that put fewer bytes for more: at most 3.5 and 4 to 1, over all characters of Unicode.
_COMPOSING_NORMALIZERS = frozenset({"NFC", "NFKC"})
_COMPOSED = 4


def bytes_per_token(tokenizer: Any) -> int | None:
    """An upper bound of the bytes of UTF-8 behind one token of a text; None if none is known, as where a tokenizer
    drops characters, or has one token for a word or a run of spaces of any length."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    parts = json.loads(backend.to_str())
    vocab = backend.get_vocab(with_added_tokens=True)
    normalizers, pre_tokenizers = _steps(parts["normalizer"]), list(_steps(parts["pre_tokenizer"]))
    factor = 1
    is_byte_level = any(step["type"] == "ByteLevel" for step in pre_tokenizers)
    for step in normalizers:
        if step["type"] in _COMPOSING_NORMALIZERS:
            factor *= _COMPOSED
        elif step["type"] not in _KEEPING_NORMALIZERS and not _replaces_by_as_much(step):
            return None
        is_byte_level |= step["type"] == "ByteLevel"
    if not all(step["type"] in _KEEPING_PRE_TOKENIZERS or _splits_only(step) for step in pre_tokenizers):
        return None
    if not _takes_every_byte(parts["model"], vocab, is_byte_level):
        return None
    if any(token["lstrip"] or token["rstrip"] for token in parts["added_tokens"]):  # they take all spaces beside them
        return None
    # Tokens spell a byte with one character or more.
    return factor * max(len(token.encode()) for token in vocab)


def _steps(entry: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """The steps of a normaliser or pre-tokeniser, sequences unfolded."""
    if entry is not None and entry["type"] == "Sequence":
        for inner in entry.get("normalizers") or entry.get("pretokenizers") or ():
            yield from _steps(inner)
    elif entry is not None:
        yield entry


def _replaces_by_as_much(step: Mapping[str, Any]) -> bool:
    pattern = step.get("pattern", {}).get("String") if step["type"] == "Replace" else None
    return pattern is not None and len(step["content"].encode()) >= len(pattern.encode())


def _splits_only(step: Mapping[str, Any]) -> bool:
    return step["type"] in ("Split", "Punctuation") and step["behavior"] != "Removed"


def _takes_every_byte(model: Mapping[str, Any], vocab: Mapping[str, int], is_byte_level: bool) -> bool:
    """Whether the model has a token for each byte, so that it never puts one "unknown" for many, or nothing."""
    from tokenizers.pre_tokenizers import ByteLevel

    if model["type"] != "BPE":
        return False
    if is_byte_level:
        return all(letter in vocab for letter in ByteLevel.alphabet())
    return bool(model["byte_fallback"]) and all(f"<0x{byte:02X}>" in vocab for byte in range(256))
