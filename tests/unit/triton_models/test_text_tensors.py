"""Tensors of texts: messages to tokens, and beams to texts."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.checkpoint.random import byte_tokenizer
from pipeline.errors import RequestError
from pipeline.triton_models.text_codec import TextCodec, parse_messages
from pipeline.triton_models.text_tensors import postprocess


@pytest.fixture(scope="module")
def codec() -> TextCodec:
    return TextCodec(byte_tokenizer(512, 4096), frozenset({1}), 512)


def texts(codec: TextCodec, tokens: list[list[list[int]]], lengths: list[list[int]]) -> list[bytes]:
    tensors = {"TOKENS_BATCH": np.asarray(tokens, np.int32), "SEQUENCE_LENGTH": np.asarray(lengths, np.int32)}
    found: list[bytes] = postprocess(codec, tensors, skip_special_tokens=True)["OUTPUT"].tolist()
    return found


def test_each_beam_is_decoded_up_to_its_length(codec):
    a, b = codec.encode("a").tolist() + codec.encode("b").tolist()

    assert texts(codec, [[[a, b], [b, a]], [[b, b], [a, -1]]], [[2, 1], [0, 1]]) == [b"ab", b"b", b"", b"a"]
    assert texts(codec, [[[a, b]]], [[9]]) == [b"ab"]


@pytest.mark.parametrize(
    ("tokens", "lengths", "sentence"),
    [
        ([[[5, -1]]], [[2]], "TOKENS_BATCH holds the token -1"),
        ([[[5, 6]]], [[-1]], "SEQUENCE_LENGTH holds -1"),
        ([[[5], [6]]], [[1]], r"SEQUENCE_LENGTH has shape \[1, 1\], TOKENS_BATCH \[1, 2, 1\]"),
    ],
)
def test_what_cannot_be_decoded_is_refused(codec, tokens, lengths, sentence):
    with pytest.raises(RequestError, match=sentence):
        texts(codec, tokens, lengths)


def test_messages_that_nest_without_end_are_refused():
    with pytest.raises(RequestError, match="messages is not valid JSON"):
        parse_messages("[" * 100_000)
