"""Import statements of Python files."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple


class Imported(NamedTuple):
    """modules: their names. for_types: below `if TYPE_CHECKING:`. at_start: at the top level of the file."""

    modules: set[str]
    for_types: bool
    at_start: bool


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def imports_of(path: Path) -> list[Imported]:
    return list(_imports_in(tree_of(path).body, for_types=False, at_start=True))


def _imports_in(statements: Iterable[ast.AST], for_types: bool, at_start: bool) -> Iterator[Imported]:
    """Visits statements only: a file has ten times as many other nodes."""
    for node in statements:
        if isinstance(node, ast.ImportFrom) and node.module:
            yield Imported({node.module}, for_types, at_start)
        elif isinstance(node, ast.Import):
            yield Imported({alias.name for alias in node.names}, for_types, at_start)
        types = isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        yield from _imports_in(getattr(node, "body", ()), for_types or types, False)
        for part in ("orelse", "finalbody", "handlers", "cases"):
            yield from _imports_in(getattr(node, part, ()), for_types, False)
