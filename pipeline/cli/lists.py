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


def numbers(option: str, text: str) -> list[int]:
    """The numbers of `1,2,4`. Raises UserError for anything but different whole numbers from 1 on."""
    found = words(option, text)
    if not all(word.isdecimal() and int(word) for word in found):
        raise UserError(f"{option} takes numbers from 1 on, separated by commas; found {text!r}.")
    return [int(word) for word in found]


def one_of(option: str, word: str, known: tuple[str, ...]) -> None:
    """Raises UserError if the word is none of the known ones."""
    if word not in known:
        raise UserError(f"{option} is {word!r}; it must be {' or '.join(known)}.")
