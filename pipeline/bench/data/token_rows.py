"""Token sequences from user files: JSON Lines of token ids or text, results of a bench, or plain text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.decoding.tree import IntArray
from pipeline.errors import UserError
from pipeline.json_lines import json_rows, reading

# A trie stores token + 1 as int32.
MAX_TOKEN = (1 << 31) - 2
Encode = Callable[[str], list[int]]


def token_sequences(path: Path, encode: Encode | None = None, with_prompts: bool = False) -> Iterator[IntArray]:
    """Yield the sequences of a file. A row of a .jsonl file has `token_ids`, or `output_ids` (after `prompt_ids`, if
    with_prompts), or `text`, which `encode` tokenizes. A .json file may be a result of `lookahead bench`. Any other
    file is one text. Raises UserError with the place of an invalid row."""
    with reading(path), path.open(encoding="utf-8") as file:
        if path.suffix == ".jsonl":
            for where, value in json_rows(file, path):
                yield _row(value, where, encode, with_prompts)
            return
        text = file.read()
    requests = bench_requests(text, path) if path.suffix == ".json" else None
    if requests is None:
        yield _encoded(text, encode, str(path))
        return
    for where, value in requests:
        yield _row(value, where, encode, with_prompts)


def bench_requests(text: str, path: Path) -> Iterable[tuple[str, Any]] | None:
    """The requests of strategy "none" (or else of the first strategy) in the results of a bench, each with its place in
    the file. None if the text is not such a result. Raises UserError if `requests` is not a list of objects."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or "requests" not in value:
        return None
    requests = value["requests"]
    if not isinstance(requests, list) or not all(isinstance(request, dict) for request in requests):
        raise UserError(f"{path}: requests must be a list of objects, as `lookahead bench --json` writes them.")
    strategies = [request.get("strategy") for request in requests]
    chosen = "none" if "none" in strategies else next(iter(strategies), None)
    # Only the first repeat.
    return [
        (f"{path}, request {number}", request)
        for number, request in enumerate(requests, 1)
        if request.get("strategy") == chosen and not request.get("repeat")
    ]


def token_list(value: Any, where: str) -> IntArray:
    """[len] token ids of a JSON value. where: start of the message. Raises UserError if the value is not a list of
    token ids."""
    if not isinstance(value, list) or not all(type(token) is int and 0 <= token <= MAX_TOKEN for token in value):
        raise UserError(f"{where} must be a list of token ids, whole numbers from 0 to {MAX_TOKEN}.")
    return np.asarray(value, np.int32)


def _row(value: Any, where: str, encode: Encode | None, with_prompts: bool) -> IntArray:
    if isinstance(value, dict):
        if "token_ids" in value:
            return token_list(value["token_ids"], f"{where}: token_ids")
        if "output_ids" in value:
            output = token_list(value["output_ids"], f"{where}: output_ids")
            if with_prompts and "prompt_ids" in value:
                return np.concatenate((token_list(value["prompt_ids"], f"{where}: prompt_ids"), output))
            return output
        if isinstance(value.get("text"), str):
            return _encoded(value["text"], encode, where)
    raise UserError(f"{where}: a row must be an object with token_ids, output_ids or text.")


def _encoded(text: str, encode: Encode | None, where: str) -> IntArray:
    if encode is None:
        raise UserError(f"{where} holds text; name the folder of a tokenizer with --tokenizer to turn it into tokens.")
    return np.asarray(encode(text), np.int32)
