"""Options that hold a list of words or numbers, separated by commas."""

from __future__ import annotations

import re

from pipeline.errors import UserError


def words(option: str, text: str) -> list[str]:
    """Parse `a,b,c`. Raises UserError if there is no word, or one twice."""
    found = [word.strip() for word in text.split(",") if word.strip()]
    if not found:
        raise UserError(f"{option} is empty; give a value, or several separated by commas.")
    if len(set(found)) != len(found):
        raise UserError(f"{option} lists an item twice: {text!r}.")
    return found


def numbers(option: str, text: str, most: int) -> list[int]:
    """Parse `1,2,4`, or `1e5,2.5e6`. Raises UserError for anything but different whole numbers from 1 to `most`."""
    found = [_number(word) for word in words(option, text)]
    if not all(1 <= number <= most for number in found):
        raise UserError(f"{option} takes numbers from 1 to {most}, separated by commas; found {_short(text)!r}.")
    return found


def _number(word: str) -> int:
    """Return 0 if the word is not a whole number."""
    # Check the length first: Python refuses to convert thousands of digits.
    if len(word) > 20 or not re.fullmatch(r"\d+|\d+(\.\d+)?e\d+", word):
        return 0
    if word.isdecimal():
        return int(word)
    number = float(word)
    return int(number) if number.is_integer() else 0


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


def one_of(option: str, word: str, known: tuple[str, ...]) -> None:
    """Raise UserError if the word is not among the known ones."""
    if word not in known:
        raise UserError(f"{option} is {word!r}; it must be {' or '.join(known)}.")
