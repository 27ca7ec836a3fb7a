import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from pipeline.checkpoint.byte_tokenizer import SPECIAL_TOKENS, byte_tokenizer
from pipeline.serving.token_bytes import bytes_per_token

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def fast(core: Tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=core)


def composing() -> PreTrainedTokenizerFast:
    """Like Qwen's: composes characters, then splits into bytes."""
    tokenizer = byte_tokenizer(300, 100)
    tokenizer.backend_tokenizer.normalizer = normalizers.NFKC()
    return tokenizer


def falling_back(*tokens: str, **more: object) -> PreTrainedTokenizerFast:
    """Like Llama 2's: pieces of text, and bytes for what they lack."""
    vocab = {token: index for index, token in enumerate([*BYTES, "▁", "a", "▁a", *tokens])}
    core = Tokenizer(models.BPE(vocab=vocab, merges=[("▁", "a")], byte_fallback=True, **more))
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return fast(core)


TEXTS = st.text() | st.lists(st.sampled_from([*SPECIAL_TOKENS, " ", "\n", "K", "ΐ", "𝐚", "ﷺ", "er", "日"])).map("".join)


@pytest.mark.parametrize(
    "tokenizer", [byte_tokenizer(300, 100), composing(), falling_back()], ids=["bytes", "nfkc", "spm"]
)
@given(text=TEXTS)
def test_no_text_has_fewer_tokens_than_its_bytes_say(tokenizer, text):
    bound = bytes_per_token(tokenizer)

    assert bound is not None
    assert len(tokenizer.encode(text, add_special_tokens=False)) * bound >= len(text.encode())


def test_the_bound_follows_the_longest_token():
    assert bytes_per_token(byte_tokenizer(300, 100)) == max(map(len, SPECIAL_TOKENS))
    assert bytes_per_token(composing()) == 4 * max(map(len, SPECIAL_TOKENS))
    assert bytes_per_token(falling_back("日" * 20)) == 60


def word_pieces() -> PreTrainedTokenizerFast:
    """A word of any length that it does not know is one token."""
    core = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    return fast(core)


def without_a_byte() -> PreTrainedTokenizerFast:
    core = json.loads(falling_back().backend_tokenizer.to_str())
    del core["model"]["vocab"]["<0x41>"]
    return fast(Tokenizer.from_str(json.dumps(core)))


def greedy_token() -> PreTrainedTokenizerFast:
    """Like Phi-3's: a special token takes all the spaces behind it."""
    tokenizer = byte_tokenizer(300, 100)
    tokenizer.add_special_tokens({"sep_token": AddedToken("<|sep|>", rstrip=True)})
    return tokenizer


def normalized(normalizer: object) -> PreTrainedTokenizerFast:
    tokenizer = byte_tokenizer(300, 100)
    tokenizer.backend_tokenizer.normalizer = normalizer
    return tokenizer


def pre_tokenized(pre_tokenizer: object) -> PreTrainedTokenizerFast:
    tokenizer = falling_back()
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizer
    return tokenizer


@pytest.mark.parametrize(
    "tokenizer",
    [
        object(),
        word_pieces(),
        without_a_byte(),
        greedy_token(),
        normalized(normalizers.Strip()),
        normalized(normalizers.Replace("  ", " ")),
        normalized(normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])),
        pre_tokenized(pre_tokenizers.WhitespaceSplit()),
        pre_tokenized(pre_tokenizers.Split(" ", "removed")),
    ],
    ids=["slow", "unknown words", "no byte", "spaces", "strip", "shorter", "lowercase", "whitespace", "removed"],
)
def test_there_is_no_bound_where_a_token_may_stand_for_any_length(tokenizer):
    assert bytes_per_token(tokenizer) is None
