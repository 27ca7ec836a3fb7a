"""The concatenated stream equals the decoded output, for every script, with two real kinds of tokenizers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, processors
from transformers import PreTrainedTokenizerFast

from pipeline.checkpoint.random import byte_tokenizer
from pipeline.triton_models.text_codec import TextCodec
from pipeline.triton_models.text_stream import TextStream

SAMPLES = (
    "The rat ate the oats.",
    "  leading and trailing spaces  ",
    "日本語のテキストです。中文也可以。한국어도",
    "สวัสดีชาวโลก नमस्ते दुनिया مرحبا بالعالم שלום",
    "👩‍👩‍👧‍👦 🇩🇪 🤷🏽‍♀️ e\u0301 \u200b\ufffd x",
    "tabs\tand\r\nlines\n\n\n",
    "mathematics ∀x∈ℝ 𝔘𝔫𝔦𝔠𝔬𝔡𝔢",
)


def sentencepiece_like() -> TextCodec:
    """Pieces with a space in front and bytes as a way out, decoded as Llama 2 and Mistral do it."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "a", "e", "t", "h", "r", "▁the", "▁at", "at", "re", "日", "é", ".", "\n"]
    core = Tokenizer(
        models.BPE(
            vocab={piece: index for index, piece in enumerate(pieces)},
            merges=[("a", "t"), ("r", "e")],
            byte_fallback=True,
            unk_token="<unk>",
            fuse_unk=True,
        )
    )
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    core.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    return TextCodec(tokenizer, frozenset({2}), len(pieces))


def byte_level() -> TextCodec:
    return TextCodec(byte_tokenizer(512, 4096), frozenset({1}), 512)


CODECS = {"byte level": byte_level(), "byte fallback": sentencepiece_like()}
codecs = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS.keys())


def streamed(codec: TextCodec, ids: list[int], stop_words: tuple[str, ...] = ()) -> tuple[str, bool]:
    stream = TextStream(codec, stop_words)
    text = "".join(map(stream.push, ids)) + stream.finish()
    return text, stream.stopped


@codecs
@pytest.mark.parametrize("sample", SAMPLES)
def test_every_script_and_emoji_comes_out_whole(codec, sample):
    ids = codec.encode(sample, add_special_tokens=False).tolist()

    text, _ = streamed(codec, ids)

    assert text == codec.decode(ids)


@codecs
@settings(max_examples=60)
@given(data=st.data())
def test_any_tokens_at_all_stream_to_their_decoded_whole(codec, data):
    ids = data.draw(st.lists(st.integers(0, codec.vocab_size - 1), max_size=30))

    text, _ = streamed(codec, ids)

    assert text == codec.decode(ids)


@codecs
@settings(max_examples=40)
@given(text=st.text(max_size=40))
def test_any_text_streams_to_its_decoded_whole(codec, text):
    ids = codec.encode(text, add_special_tokens=False).tolist()

    assert streamed(codec, ids)[0] == codec.decode(ids)


@codecs
def test_nothing_shown_is_ever_taken_back(codec):
    ids = codec.encode("".join(SAMPLES), add_special_tokens=False).tolist()
    whole, stream, shown = codec.decode(ids), TextStream(codec), ""
    for token in ids:
        shown += stream.push(token)
        assert whole.startswith(shown)


def first_stop(text: str, stop_words: tuple[str, ...]) -> str | None:
    """The reference: letter by letter, until the text so far ends with a stop word; of several the longest."""
    for end in range(1, len(text) + 1):
        found = [word for word in stop_words if text[:end].endswith(word)]
        if found:
            return text[: end - max(map(len, found))]
    return None


@settings(max_examples=120)
@given(
    text=st.text("abc \n", max_size=40),
    stop_words=st.lists(st.text("abc \n", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_stop_words_never_leak_and_cut_where_the_first_one_is_complete(text, stop_words):
    codec = CODECS["byte level"]
    ids = codec.encode(text, add_special_tokens=False).tolist()
    words = tuple(stop_words)
    stream = TextStream(codec, words)
    shown = ""
    for token in ids:
        shown += stream.push(token)
        assert not any(word in shown for word in words)
    shown += stream.finish()

    # Nearly all tokens of this tokenizer are one letter, so a reference by letters is exact.
    expected = first_stop(text, words)
    assert stream.stopped == (expected is not None)
    assert shown == (text if expected is None else expected)


def test_of_two_stop_words_within_a_token_the_one_that_is_complete_first_counts():
    codec = CODECS["byte fallback"]
    ids = codec.tokenizer.convert_tokens_to_ids(["a", "▁the"])

    assert streamed(codec, ids, ("the", " ")) == ("a", True)


def letters(text: str) -> list[int]:
    """A token for each letter, for the byte level codec."""
    ids: list[int] = CODECS["byte level"].tokenizer.convert_tokens_to_ids(list(text))
    return ids


def shown_by(stream: TextStream, text: str) -> str:
    return "".join(map(stream.push, letters(text))) + stream.finish()


@pytest.mark.parametrize(
    ("stop_words", "min_tokens", "expected"),
    [
        (("bc",), 2, "a"),
        (("bc",), 3, "abcda"),  # the first one is complete with token 3
        (("bc",), 7, "abcdabcd"),
        (("bc", "abcdx"), 3, "abcda"),  # the first one is held back as the beginning of the other
        (("cd",), 3, "ab"),  # begins before
        (("dabcd", "bc"), 6, "abcda"),
    ],
)
def test_a_stop_word_counts_if_it_ends_after_min_tokens(stop_words, min_tokens, expected):
    assert shown_by(TextStream(CODECS["byte level"], stop_words, min_tokens), "abcdabcd") == expected


def test_a_stop_word_may_begin_again_within_what_is_held_back():
    assert shown_by(TextStream(CODECS["byte level"], ("bcd",)), "abbcd") == "ab"


class CountedWord(str):
    """A stop word that counts the comparisons with all of them."""

    num_comparisons = 0

    def startswith(self, *arguments: Any) -> bool:
        CountedWord.num_comparisons += 1
        return super().startswith(*arguments)


def test_many_stop_words_beside_a_long_one_cost_one_comparison_per_length_of_the_text():
    """With a thousand of them, a text of 8,000 characters took seconds after its end differed from the long one."""
    words = [CountedWord("a" * 60), *(CountedWord(f"c{number}") for number in range(50))]
    assert shown_by(TextStream(CODECS["byte level"], words), "a" * 40 + "b") == "a" * 40 + "b"
    assert CountedWord.num_comparisons <= 100


def test_a_resumed_output_counts_its_earlier_tokens_and_ignores_their_stop_words():
    for earlier in ("baaaaaabc", "bc"):
        num_earlier = len(earlier)
        for min_tokens, expected in ((num_earlier, "a"), (num_earlier + 2, "a"), (num_earlier + 3, "abcd")):
            stream = TextStream(CODECS["byte level"], ("bc",), min_tokens)
            stream.resume(letters(earlier))
            assert shown_by(stream, "abcd") == expected


@pytest.mark.parametrize("cut", [3, 9, 14, 15, 16])
def test_an_output_is_resumed_within_a_long_run_of_byte_tokens(cut):
    """Each character takes three tokens, and a run is decoded as a whole."""
    codec = CODECS["byte fallback"]
    ids = [3 + byte for byte in "本語中文한".encode()]
    ids = [*ids[:8], 1, *ids[8:], *codec.tokenizer.convert_tokens_to_ids(["t", "h", "e"])]
    stream, resumed = TextStream(codec), TextStream(codec)
    shown = "".join(map(stream.push, ids[:cut]))
    resumed.resume(ids[:cut])
    assert shown + "".join(map(resumed.push, ids[cut:])) + resumed.finish() == "本語中文한the"


def test_a_whole_stop_word_that_is_text_is_not_held_back():
    stream = TextStream(CODECS["byte level"], ("bc",), min_tokens=9)
    assert [stream.push(token) for token in letters("abc")] == ["a", "", "bc"]


def test_after_a_stop_word_nothing_comes():
    codec = CODECS["byte level"]
    stream = TextStream(codec, ("b",))

    assert "".join(stream.push(token) for token in codec.encode("abc", False).tolist()) == "a"
    assert stream.push(5) == ""
    assert stream.finish() == ""


def test_a_special_token_between_bytes_does_not_end_their_run():
    codec = CODECS["byte fallback"]
    first, special, second = 3 + 0x00, 1, 3 + 0xFF  # "<0x00>", "<s>", "<0xFF>": invalid together

    assert streamed(codec, [first, special, second])[0] == codec.decode([first, special, second])


def test_special_tokens_are_not_part_of_the_text():
    codec = CODECS["byte level"]
    ids = [0, *codec.encode("hi", False).tolist(), 3, 1]

    assert streamed(codec, ids) == ("hi", False)


def test_an_incomplete_character_and_the_beginning_of_a_stop_word_are_held_back():
    codec = CODECS["byte level"]
    stream, held = TextStream(codec, ("zqz",)), []
    for token in codec.encode("\u00e9 zq-", add_special_tokens=False).tolist():
        stream.push(token)
        held.append(stream.is_holding)
    assert held == [True, False, False, True, True, False]
