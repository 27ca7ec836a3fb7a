"""Functions of a server's tokenizer: chat prompts, words, biases, end tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from pipeline.checkpoint.random import byte_tokenizer
from pipeline.errors import RepositoryError, RequestError
from pipeline.triton_models.text_codec import TextCodec, load_codec

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)


def codec() -> TextCodec:
    tokenizer = byte_tokenizer(512, 4096)
    tokenizer.chat_template = TEMPLATE
    return TextCodec(tokenizer, frozenset({1}), 512)


def test_a_conversation_ends_where_the_assistant_begins() -> None:
    assert codec().chat_text([{"role": "user", "content": "Hi"}]) == "[user]Hi[assistant]"


def test_an_output_behind_its_prompt_has_the_space_that_it_lacks_alone() -> None:
    """An echoed prompt and its output had no space between them: "the catsat"."""
    words = Tokenizer(models.WordLevel({"▁cat": 0, "▁sat": 1, "s": 2, "<unk>": 3}, unk_token="<unk>"))
    words.decoder = decoders.Metaspace()
    pieces = TextCodec(PreTrainedTokenizerFast(tokenizer_object=words), frozenset(), 4)
    assert pieces.decode([1]) == "sat"
    assert [pieces.space_between([0], output) for output in ([1], [2], [1, 2], [])] == [" ", "", " ", ""]
    assert codec().space_between([70, 71], [72, 73]) == ""


def test_what_a_template_refuses_is_said_in_its_words() -> None:
    with pytest.raises(RequestError, match="does not take these messages: no tools"):
        codec().chat_text([{"role": "tool", "content": "Hi"}])


def test_words_are_their_tokens_alone_and_empty_ones_are_left_out() -> None:
    words = codec().encode_words(["ab", "", "日"])

    assert [codec().decode(word, skip_special_tokens=False) for word in words] == ["ab", "日"]


def test_weights_of_words_add_up_on_all_their_tokens_once_per_word() -> None:
    (letter,), (other,) = codec().encode_words(["x", "y"])
    bias = codec().embedding_bias(["xyx", "x"], [2.0, -0.5])

    assert bias is not None
    assert {token: weight for token, weight in enumerate(bias.tolist()) if weight} == {letter: 1.5, other: 2.0}
    assert codec().embedding_bias([], []) is None


@pytest.mark.parametrize(
    ("named", "expected"), [(None, {1}), (5, {1, 5}), ([5, 9], {1, 5, 9}), ([9, 50256], {1, 9}), (-5, {1}), ([], {1})]
)
def test_end_tokens_are_those_of_the_tokenizer_and_of_the_model_that_can_come(
    named: int | list[int] | None, expected: set[int], tmp_path: Path
) -> None:
    byte_tokenizer(300, 64).save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": named}), encoding="utf-8")

    assert load_codec(tmp_path, tmp_path).end_ids == expected
    assert load_codec(tmp_path).end_ids == {1}


def test_a_tokenizer_without_an_end_token_has_none_and_pads_with_that() -> None:
    tokenizer = byte_tokenizer(512, 4096)
    tokenizer.eos_token = tokenizer.pad_token = None
    assert (codec().end_id, TextCodec(tokenizer, frozenset(), 512).end_id) == (1, -1)
    assert TextCodec(tokenizer, frozenset(), 512).pad_id == -1


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(RepositoryError, match=f"The tokenizer in {tmp_path} cannot be loaded"):
        load_codec(tmp_path)
