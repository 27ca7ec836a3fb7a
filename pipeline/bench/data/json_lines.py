"""Files that people hand in as JSON Lines: what is wrong with one is said in a sentence that names file and line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.errors import UserError


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raises UserError if what is done inside finds that the file cannot be read or is no UTF-8."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} cannot be read as UTF-8 text: {error.reason} at byte {error.start}.") from error


def json_rows(lines: Iterable[str], path: Path) -> Iterator[tuple[str, Any]]:
    """Where each row of a file stands ("FILE, line N") and its value; empty lines are left out. Raises UserError at
    the first line that is no JSON."""
    for number, line in enumerate(lines, 1):
        if number == 1:  # some editors put a byte order mark there
            line = line.removeprefix("\ufeff")
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{where} is no JSON: {error.msg} at column {error.colno}.") from error
        except RecursionError as error:
            raise UserError(f"{where} is nested too deeply.") from error
        except ValueError as error:
            raise UserError(f"{where} holds a number of too many digits.") from error
        yield where, value
