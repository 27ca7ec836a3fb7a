"""Builds the tokenizer of a GGUF file as llama.cpp reads it.

transformers' own conversion splits text by another rule than a file states (`tokenizer.ggml.pre`), adds special tokens
that already are in the vocabulary, or cuts them into bytes, and reads tokenizer files in the same folder instead.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.config.gguf_file import GgufFile
from pipeline.errors import CheckpointError

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

# Types of tokens in a file; others are plain.
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4


class _Rule(NamedTuple):
    """How text is split before merges apply. pattern: of the parts; None for that of GPT-2. digits: first split off
    every digit. whole: a part that is a token is never composed of others. bos: add the BOS token if the file does not
    state it. nfc: normalize text."""

    pattern: str | None = None
    digits: bool = False
    whole: bool = False
    bos: bool = False
    nfc: bool = False


_LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN_2 = _LLAMA_3.replace("{1,3}", "")
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# By `tokenizer.ggml.pre`, as in llama-vocab.cpp of llama.cpp; Qwen's normalization as in its tokenizer.json. Files
# from before May 2024 state no rule.
_RULES = {
    **dict.fromkeys((None, "default", "gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion"), _Rule()),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), _Rule(digits=True)
    ),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3"), _Rule(_LLAMA_3, whole=True, bos=True)),
    **dict.fromkeys(("smaug-bpe", "dbrx"), _Rule(_LLAMA_3)),
    "qwen2": _Rule(_QWEN_2, nfc=True),
    **dict.fromkeys(("deepseek-r1-qwen", "megrez"), _Rule(_QWEN_2)),
    "tekken": _Rule(_TEKKEN, whole=True, bos=True),
}


def read_tokenizer(path: Path) -> PreTrainedTokenizerFast:
    """Return the tokenizer of a GGUF file. Raises CheckpointError if the file has none, or one of an unsupported
    kind."""
    from tokenizers import AddedToken
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    file = GgufFile(path, CheckpointError)
    tokens: list[str] = _value(file, "tokens") or []
    kinds: list[int] = _value(file, "token_type") or []
    if not tokens:
        raise CheckpointError(f"{path} has no tokenizer. Use a file that has one.")
    match _value(file, "model"):
        case "gpt2":
            tokenizer, adds_bos = _byte_level(file, path, tokens)
        case "llama":
            tokenizer, adds_bos = _sentencepiece(file, tokens, kinds), True
        case other:
            raise CheckpointError(
                f"{path} has a tokenizer of type {other!r} (tokenizer.ggml.model); supported are 'gpt2' and 'llama'. "
                "Use the checkpoint's safetensors instead (source: hub or local)."
            )
    special = [token for token, kind in zip(tokens, kinds, strict=False) if kind in (_UNKNOWN, _CONTROL)]
    defined = [token for token, kind in zip(tokens, kinds, strict=False) if kind == _USER_DEFINED and token]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in defined])
    ids = {
        name: _value(file, f"{key}_token_id")
        for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
    }
    # Some files name a padding token outside the vocabulary.
    words = {name: tokens[number] for name, number in ids.items() if number in range(len(tokens))}
    added = {
        name: words[name]
        for name, default in (("bos", adds_bos), ("eos", False))
        if _value(file, f"add_{name}_token", default) and name in words
    }
    tokenizer.post_processor = TemplateProcessing(
        single=[*([added["bos"]] if "bos" in added else []), "$A", *([added["eos"]] if "eos" in added else [])],
        special_tokens=[(word, ids[name]) for name, word in added.items()],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        chat_template=file.value("tokenizer.chat_template"),
        clean_up_tokenization_spaces=False,
        **{f"{name}_token": words.get(name) for name in ids},
    )


def _byte_level(file: GgufFile, path: Path, tokens: list[str]) -> tuple[Tokenizer, bool]:
    """Byte-level BPE, and whether it adds the BOS token by default."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    kind = _value(file, "pre")
    rule = _RULES.get(kind)
    if rule is None:
        raise CheckpointError(
            f"{path} splits text by the rule {kind!r} (tokenizer.ggml.pre), which is not supported. Use the "
            "checkpoint's safetensors instead (source: hub or local)."
        )
    merges = [tuple(merge.split(" ")) for merge in _value(file, "merges") or []]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=rule.whole))
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if rule.digits else []
    if rule.pattern is not None:
        steps.append(pre_tokenizers.Split(Regex(rule.pattern), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=rule.pattern is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    if rule.nfc:
        tokenizer.normalizer = normalizers.NFC()
    return tokenizer, rule.bos


def _sentencepiece(file: GgufFile, tokens: list[str], kinds: list[int]) -> Tokenizer:
    """BPE of SentencePiece: the pair of the token with the highest score is merged first."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    vocabulary = {token: number for number, token in enumerate(tokens)}
    scores = _value(file, "scores") or [0.0] * len(tokens)
    pairs = [
        (-scores[number], -cut, token[:cut], token[cut:])
        for token, number in vocabulary.items()
        for cut in range(1, len(token))
        if token[:cut] in vocabulary and token[cut:] in vocabulary
    ]
    unknown = next((token for token, kind in zip(tokens, kinds, strict=False) if kind == _UNKNOWN), None)
    merges = [(left, right) for _, _, left, right in sorted(pairs)]
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    has_prefix = _value(file, "add_space_prefix", True)
    tokenizer.normalizer = normalizers.Sequence(
        [*([normalizers.Prepend("▁")] if has_prefix else []), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            *([decoders.Strip(" ", 1, 0)] if has_prefix else []),
        ]
    )
    return tokenizer


def _value(file: GgufFile, name: str, default: Any = None) -> Any:
    value = file.value(f"tokenizer.ggml.{name}")
    return default if value is None else value
