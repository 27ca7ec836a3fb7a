"""Options that hold a list: words or numbers separated by commas."""

from __future__ import annotations

from pipeline.errors import UserError


def words(option: str, text: str) -> list[str]:
    """The words of `a,b,c`. Raises UserError if there is none, or one twice."""
    found = [word.strip() for word in text.split(",") if word.strip()]
    if not found:
        raise UserError(f"{option} names nothing; give a value, or several separated by commas.")
    if len(set(found)) != len(found):
        raise UserError(f"{option} names one thing twice: {text!r}.")
    return found


def numbers(option: str, text: str, most: int) -> list[int]:
    """The numbers of `1,2,4`. Raises UserError for anything but different whole numbers from 1 to `most`."""
    found = words(option, text)
    # Compared by length first: Python does not turn thousands of digits into a number.
    if not all(word.isdecimal() and len(word) <= len(str(most)) and 1 <= int(word) <= most for word in found):
        raise UserError(f"{option} takes numbers from 1 to {most}, separated by commas; found {_short(text)!r}.")
    return [int(word) for word in found]


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


def one_of(option: str, word: str, known: tuple[str, ...]) -> None:
    """Raises UserError if the word is none of the known ones."""
    if word not in known:
        raise UserError(f"{option} is {word!r}; it must be {' or '.join(known)}.")
