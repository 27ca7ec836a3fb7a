"""Reading of tensors: word lists, values, flags, and wrong ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import RequestError
from pipeline.triton_models import tensors as t

words = st.lists(st.lists(st.integers(0, 1000), min_size=1, max_size=6), max_size=6)


@given(words)
def test_word_lists_come_back_from_their_packed_form(some):
    packed = t.pack_word_list(some)

    assert packed.shape[0] == 2
    assert t.word_list({"w": packed[None]}, "w") == tuple(map(tuple, some))


@pytest.mark.parametrize("ends", [[3, 2], [9], [0, 1]])
def test_word_lists_with_wrong_ends_are_refused(ends):
    value = np.asarray([[[5, 6, 7], [*ends, *[-1] * (3 - len(ends))]]])

    with pytest.raises(RequestError, match="ends a word at"):
        t.word_list({"w": value}, "w")


def test_word_lists_of_a_wrong_shape_are_refused():
    with pytest.raises(RequestError, match=r"\[1, 2, L\]"):
        t.word_list({"w": np.zeros((1, 3, 4), np.int32)}, "w")


def test_values_that_were_not_sent_are_none_and_flags_false():
    assert t.scalar({}, "a") is None
    assert t.text({}, "a") is None
    assert t.flag({}, "a") is False
    assert t.texts({}, "a") == []
    assert t.token_ids({}, "a").tolist() == []


def test_values_come_back_as_python_values_whatever_the_shape():
    for shape in ((1,), (1, 1)):
        assert t.integer({"a": np.full(shape, 7, np.int32)}, "a") == 7
        assert t.flag({"a": np.full(shape, True)}, "a") is True
        assert t.text({"a": np.full(shape, "é".encode(), np.object_)}, "a") == "é"


def test_empty_words_are_left_out():
    assert t.texts({"a": np.asarray([[b"", b"x", b""]], np.object_)}, "a") == ["x"]


@pytest.mark.parametrize(
    ("value", "read", "text"),
    [
        (np.asarray([[1, 2]]), t.integer, "must hold one value"),
        (np.asarray([[float("nan")]]), t.number, "finite"),
        (np.asarray([[b"ab\xff"]], np.object_), t.text, "a is not valid UTF-8: byte 2 is 0xff"),
        (np.asarray([[b"x", b"\xc3"]], np.object_), t.texts, "not valid UTF-8"),
    ],
)
def test_wrong_values_get_a_sentence_with_the_name(value, read, text):
    with pytest.raises(RequestError, match=text):
        read({"a": value}, "a")


def test_several_rows_are_refused():
    with pytest.raises(RequestError, match="batch of 2"):
        t.require_one_row({"a": np.zeros((2, 1))})
