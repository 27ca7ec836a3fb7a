"""The notebook of the documentation runs on a CPU, and its page has every cell."""

from __future__ import annotations

import ast
import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.folders import folders

NOTEBOOK = folders({}).home / "docs" / "notebook.ipynb"


def cells(kind: str) -> list[dict[str, Any]]:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    return [cell for cell in notebook["cells"] if cell["cell_type"] == kind]


def run(source: str, names: dict[str, Any]) -> str:
    """What a cell prints, with the value of its last expression."""
    tree = ast.parse(source)
    printed = io.StringIO()
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, NOTEBOOK.name, "exec"), names)
        value = None if last is None else eval(compile(ast.Expression(last.value), NOTEBOOK.name, "eval"), names)
    return printed.getvalue() + ("" if value is None else repr(value))


def stored_output(cell: dict[str, Any]) -> str:
    return "".join(output.get("text") or output["data"]["text/plain"] for output in cell["outputs"])


@pytest.mark.slow
def test_every_cell_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a random model, so only the cells without a model print what is stored."""
    monkeypatch.setenv("LOOKAHEAD_MODEL", "tiny-random-llama")
    monkeypatch.setenv("LOOKAHEAD_ENGINES", str(tmp_path / "engines"))
    names: dict[str, Any] = {}
    printed = [run(cell["source"], names) for cell in cells("code")]
    stored = [stored_output(cell) for cell in cells("code")]
    assert printed[:3] == stored[:3]
    assert "equal: True" in printed[3]
    assert "equal: True" in stored[3]


def test_a_cell_was_stored_with_its_output_and_without_machine_names() -> None:
    assert all(stored_output(cell) for cell in cells("code"))
    assert [cell["execution_count"] for cell in cells("code")] == list(range(1, len(cells("code")) + 1))
    assert "/home/" not in NOTEBOOK.read_text(encoding="utf-8")
