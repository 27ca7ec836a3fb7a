"""Reads JSON Lines files of users. Errors name file and line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.errors import UserError


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise UserError if the block raises an error because the file cannot be read or is not UTF-8."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        # Its place in the file is unknown: the error counts from the start of a part of the file.
        byte = error.object[error.start]
        raise UserError(f"{path} cannot be read as UTF-8 text: byte 0x{byte:02X}: {error.reason}.") from error


def json_rows(lines: Iterable[str], path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the place ("FILE, line N") and the value of each row. Skips empty lines. Raises UserError at the first line
    that is not JSON."""
    for number, line in enumerate(lines, 1):
        if number == 1:  # some editors put a byte order mark there
            line = line.removeprefix("\ufeff")
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            value = json.loads(line.rstrip())
        except json.JSONDecodeError as error:
            raise UserError(f"{where} is not JSON: {error.msg} at column {error.colno}.") from error
        except RecursionError as error:
            raise UserError(f"{where} is nested too deeply.") from error
        except ValueError as error:
            raise UserError(f"{where} has a number with too many digits.") from error
        yield where, value
