"""Readers of single values and word lists in request tensors. Each raises RequestError for an invalid tensor.

The tensors of a request are a mapping from name to numpy array. Axis 0 is the batch: one request has one row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.decoding.sampling_checks import is_finite
from pipeline.decoding.tree import IntArray
from pipeline.errors import RequestError

Array = npt.NDArray[Any]
Tensors = Mapping[str, Array]


def int_tensor(value: int) -> Array:
    """[1, 1] int32."""
    return np.asarray([[value]], np.int32)


def float_tensor(value: float) -> Array:
    """[1, 1] float32."""
    return np.asarray([[value]], np.float32)


def text_tensor(value: str) -> Array:
    """[1, 1] text. Triton takes text as bytes objects only."""
    return np.asarray([[value.encode()]], np.object_)


def require_one_row(tensors: Tensors) -> None:
    """Raise RequestError if a tensor holds several requests."""
    for name, value in tensors.items():
        if value.ndim and value.shape[0] != 1:
            raise RequestError(f"{name} holds a batch of {value.shape[0]} requests; send each as a request of its own")


def scalar(tensors: Tensors, name: str) -> Any:
    """The value of a tensor with one element as a Python number, bool or bytes; None if it was not sent. Raises
    RequestError if it has another number of elements."""
    value = tensors.get(name)
    if value is None:
        return None
    if value.size != 1:
        raise RequestError(f"{name} has shape {list(value.shape)}; it must hold one value")
    return value.reshape(-1)[0].item() if value.dtype != np.object_ else value.reshape(-1)[0]


def number(tensors: Tensors, name: str, least: float | None = None, most: float | None = None) -> float | None:
    """The value of a number; None if it was not sent. Raises RequestError if it is not finite in 32 bits, or not in
    least .. most."""
    value = scalar(tensors, name)
    if value is None:
        return None
    if not is_finite(value):
        raise RequestError(f"{name} is {value}; it must be a finite number of 32 bits")
    _require_between(name, value, least, most)
    return float(value)


def integer(tensors: Tensors, name: str, least: int | None = None, most: int | None = None) -> int | None:
    """The value of an integer; None if it was not sent. Raises RequestError if it is not in least .. most."""
    value = scalar(tensors, name)
    if value is None:
        return None
    _require_between(name, value, least, most)
    return int(value)


def _require_between(name: str, value: float, least: float | None, most: float | None) -> None:
    if (least is not None and value < least) or (most is not None and value > most):
        found = f"{value:g}" if isinstance(value, float) else value
        right = f"at least {least}" if most is None else f"in {least} .. {most}"
        raise RequestError(f"{name} is {found}; it must be {right}")


def flag(tensors: Tensors, name: str) -> bool:
    """The value of a boolean; False if it was not sent."""
    return bool(scalar(tensors, name))


def text(tensors: Tensors, name: str) -> str | None:
    """The value of a string; None if it was not sent. Raises RequestError if it is not UTF-8."""
    value = scalar(tensors, name)
    return None if value is None else decode_utf8(value, name)


def texts(tensors: Tensors, name: str) -> list[str]:
    """A list of strings without empty ones, which many clients send for "none"."""
    value = tensors.get(name)
    if value is None:
        return []
    return [word for item in value.reshape(-1) if (word := decode_utf8(item, name))]


def decode_utf8(value: bytes | str, name: str) -> str:
    """Text of an element of the tensor `name`. Raises RequestError if it is not UTF-8."""
    if isinstance(value, str):
        return value
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"{name} is not valid UTF-8: byte {error.start} is {value[error.start]:#04x}") from error


def token_ids(tensors: Tensors, name: str) -> IntArray:
    """[len] token ids; empty if they were not sent."""
    value = tensors.get(name)
    return np.empty(0, np.int32) if value is None else value.reshape(-1).astype(np.int32)


def word_list(tensors: Tensors, name: str) -> tuple[tuple[int, ...], ...]:
    """Token sequences from TensorRT-LLM's layout [1, 2, L]: row 0 their concatenated ids, row 1 the end of each, padded
    with -1. Raises RequestError for another shape, or ends that do not increase."""
    value = tensors.get(name)
    if value is None or value.size == 0:
        return ()
    if value.ndim < 2 or value.shape[-2] != 2:
        raise RequestError(f"{name} has shape {list(value.shape)}; it must be [1, 2, L]: token ids above their ends")
    ids, ends = value.reshape(2, -1).tolist()
    words, start = [], 0
    for end in ends:
        if end < 0:
            break
        if not start < end <= len(ids):
            raise RequestError(f"{name} ends a word at {end}; ends must increase and be in 1 .. {len(ids)}")
        words.append(tuple(ids[start:end]))
        start = end
    return tuple(words)


def pack_word_list(words: Sequence[Sequence[int]]) -> IntArray:
    """[2, L] word list in the layout that `word_list` reads. Without words it has one column of padding."""
    ids = [token for word in words for token in word]
    ends = np.cumsum([len(word) for word in words]).tolist()
    width = max(len(ids), 1)
    return np.asarray([ids + [0] * (width - len(ids)), ends + [-1] * (width - len(ends))], np.int32)
