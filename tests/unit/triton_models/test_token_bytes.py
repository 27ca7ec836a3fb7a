"""The lower bound of a text's number of tokens, by the longest token."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from pipeline.checkpoint.byte_tokenizer import SPECIAL_TOKENS, byte_tokenizer
from pipeline.triton_models.token_bytes import TokenBytes, token_bytes

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


def without(*tokens: str) -> PreTrainedTokenizerFast:
    """Like SmolLM2's: has no token for some bytes, and drops them."""
    core = json.loads(byte_tokenizer(260, 100).backend_tokenizer.to_str())
    for token in tokens:
        del core["model"]["vocab"][token]
    return fast(Tokenizer.from_str(json.dumps(core)))


def greedy_token() -> PreTrainedTokenizerFast:
    """Like Phi-3's: a special token takes all the spaces behind it."""
    tokenizer = byte_tokenizer(300, 100)
    tokenizer.add_special_tokens({"sep_token": AddedToken("<|sep|>", rstrip=True)})
    return tokenizer


PIECES = [*SPECIAL_TOKENS, "<|sep|>", " ", "\n", "\u3000", "\u00a0", "K", "ΐ", "𝐚", "ﷺ", "er", "日", "A", "e"]
TEXTS = st.text() | st.lists(st.sampled_from(PIECES)).map("".join)
BOUND = {
    "bytes": byte_tokenizer(300, 100),
    "nfkc": composing(),
    "spm": falling_back(),
    "dropped": without("A", "e"),
    "spaces": greedy_token(),
}


@pytest.mark.parametrize("tokenizer", BOUND.values(), ids=BOUND)
@given(text=TEXTS)
def test_no_text_has_fewer_tokens_than_its_bytes_say(tokenizer, text):
    bound = token_bytes(tokenizer)

    assert bound is not None
    assert len(tokenizer.encode(text, add_special_tokens=False)) >= bound.fewest_tokens(text)


def test_the_bound_follows_the_longest_token():
    assert token_bytes(byte_tokenizer(300, 100)) == TokenBytes(max(map(len, SPECIAL_TOKENS)))
    assert token_bytes(composing()) == TokenBytes(4 * max(map(len, SPECIAL_TOKENS)))
    assert token_bytes(falling_back("日" * 20)) == TokenBytes(60)
    assert TokenBytes(10).fewest_tokens("a" * 91) == 10


def test_what_a_tokenizer_drops_or_takes_along_does_not_count():
    dropping, greedy = token_bytes(without("A", "e")), token_bytes(greedy_token())

    assert dropping is not None
    assert greedy is not None
    assert dropping.fewest_tokens("Ae" * 1000) == 0
    assert dropping.fewest_tokens("Aeb" * 1000) == -(-1000 // dropping.most)
    assert greedy.fewest_tokens(" \n\u3000" * 1000) == 0


def word_pieces() -> PreTrainedTokenizerFast:
    """A word of any length that it does not know is one token."""
    core = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    return fast(core)


def without_a_byte() -> PreTrainedTokenizerFast:
    core = json.loads(falling_back().backend_tokenizer.to_str())
    del core["model"]["vocab"]["<0x41>"]
    return fast(Tokenizer.from_str(json.dumps(core)))


def composing_and_greedy() -> PreTrainedTokenizerFast:
    tokenizer = greedy_token()
    tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
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
        composing_and_greedy(),
        normalized(normalizers.Strip()),
        normalized(normalizers.Replace("  ", " ")),
        normalized(normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])),
        pre_tokenized(pre_tokenizers.WhitespaceSplit()),
        pre_tokenized(pre_tokenizers.Split(" ", "removed")),
    ],
    ids=["slow", "unknown words", "no byte", "spaces", "strip", "shorter", "lowercase", "whitespace", "removed"],
)
def test_there_is_no_bound_where_a_token_may_stand_for_any_length(tokenizer):
    assert token_bytes(tokenizer) is None
