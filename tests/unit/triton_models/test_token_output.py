"""Sent tokens spell the text before the first stop word, and never a part of a stop word."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from pipeline.triton_models.text_codec import TextCodec
from pipeline.triton_models.text_stream import TextStream
from pipeline.triton_models.token_output import TokenOutput
from tests.unit.triton_models.test_text_stream import CODECS, codecs, streamed


def sent(codec: TextCodec, ids: list[int], words: tuple[str, ...], resumed: tuple[int, ...] = ()) -> list[list[int]]:
    """What is sent after each token, and at the end."""
    output = TokenOutput(codec, text := TextStream(codec, words), resumed)
    chunks = [output.push(token) for token in ids if not text.stopped]
    return [*chunks, output.finish()]


def flat(chunks: list[list[int]]) -> list[int]:
    return [token for chunk in chunks for token in chunk]


@codecs
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_the_tokens_spell_the_text_up_to_the_stop_word(codec, data):
    sample = data.draw(st.text(alphabet="aeht日é .\nxy", min_size=1, max_size=24))  # x and y may be bytes
    ids = codec.encode(sample, add_special_tokens=False).tolist()
    whole = codec.decode(ids)
    start = data.draw(st.integers(0, len(whole)))
    word = whole[start : start + data.draw(st.integers(1, 5))] or "q"
    expected, stopped = streamed(codec, ids, (word,))

    chunks = sent(codec, ids, (word,))

    assert codec.decode(flat(chunks)) == expected
    if not stopped:
        assert flat(chunks) == ids
    for count in range(len(chunks) + 1):
        assert expected.startswith(codec.decode(flat(chunks[:count])).rstrip("\ufffd"))


@codecs
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_tokens_without_a_stop_word_are_sent_unchanged(codec, data):
    ids = data.draw(st.lists(st.integers(4, codec.vocab_size - 1), max_size=30))

    assert flat(sent(codec, ids, ("\x00never",))) == ids


@codecs
def test_an_output_that_goes_on_elsewhere_stops_at_the_same_place(codec):
    ids = codec.encode("the rat at the tea", add_special_tokens=False).tolist()
    whole = flat(sent(codec, ids, ("e te",)))

    for cut in range(len(whole)):
        before = flat(sent(codec, ids, ("e te",)))[:cut]
        assert before + flat(sent(codec, ids[cut:], ("e te",), tuple(before))) == whole


def test_text_that_ends_within_a_token_is_spelled_by_bytes():
    codec = CODECS["byte fallback"]
    ids = codec.tokenizer.convert_tokens_to_ids(["▁", "h", "at"])

    assert codec.tokenizer.convert_ids_to_tokens(flat(sent(codec, ids, ("t",)))) == ["▁", "h", "<0x61>"]


def test_a_stop_word_that_begins_with_a_space_is_found_behind_resumed_tokens():
    codec = CODECS["byte fallback"]
    *resumed, last = codec.tokenizer.convert_tokens_to_ids(["▁", "h", "▁at"])

    assert flat(sent(codec, [last], (" at",), tuple(resumed))) == []


def test_text_that_ends_within_a_token_is_spelled_as_it_reads_behind_resumed_tokens():
    codec = CODECS["byte fallback"]
    *resumed, last = codec.tokenizer.convert_tokens_to_ids(["▁", "h", "▁at"])

    assert codec.decode([*resumed, *flat(sent(codec, [last], ("t",), tuple(resumed)))]) == "h a"


def test_spelled_text_has_no_token_that_begins_a_prompt():
    codec = CODECS["byte fallback"]
    ids = codec.tokenizer.convert_tokens_to_ids(["▁at"])

    assert codec.tokenizer.convert_ids_to_tokens(flat(sent(codec, ids, ("t",)))) == ["▁", "a"]


def test_text_that_no_tokens_spell_is_not_sent():
    core = Tokenizer(models.WordLevel({"ab": 0, "<unk>": 1}, unk_token="<unk>"))
    codec = TextCodec(PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>"), frozenset(), 2)

    assert sent(codec, [0], ("b",)) == [[], []]


@codecs
def test_an_end_token_comes_behind_what_was_kept_back(codec):
    output = TokenOutput(codec, TextStream(codec, ("the rat",)))
    ids = codec.encode("the", add_special_tokens=False).tolist()

    chunks = [output.push(token) for token in ids]

    assert flat(chunks) != ids
    assert flat(chunks) + output.finish([1]) == [*ids, 1]


@codecs
def test_no_part_ends_within_a_character(codec):
    ids = codec.encode("ü日 the 🙂", add_special_tokens=False).tolist()

    chunks = sent(codec, ids, ())

    assert flat(chunks) == ids
    texts = [codec.decode(flat(chunks[: count + 1])) for count in range(len(chunks))]
    assert not any(text.endswith("\ufffd") for text in texts)
    assert sum(not chunk for chunk in chunks[:-1]) > 0
