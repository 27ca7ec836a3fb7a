"""The command line in the tests' own process."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import typer
from typer.testing import CliRunner, Result

from pipeline import cli
from pipeline.cli import output


def exit_code(*arguments: str) -> int:
    """Run one command; its exit code."""
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    return int(caught.value.code or 0)


def invoke(app: typer.Typer, *arguments: object) -> Result:
    """Run a command of an application. Raises its error, which `exit_code` shows."""
    result = CliRunner().invoke(app, list(map(str, arguments)))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def output_of(app: typer.Typer, *arguments: object) -> str:
    """Run a command that succeeds; what it prints."""
    result = invoke(app, *arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


@contextmanager
def redirected(number: int, target: int) -> Iterator[None]:
    """Let another file be standard input (0) or output (1), as a shell does. The console is that of a new process.
    target: descriptor of the file."""
    before = os.dup(number)
    os.dup2(target, number)
    with pytest.MonkeyPatch.context() as patch:
        if number == 1:  # pytest captures what goes to its own sys.stdout
            patch.setattr(sys, "stdout", io.TextIOWrapper(io.FileIO(1, "wb", closefd=False)))
            patch.setattr(output.console, "stderr", False)  # some commands change it
        try:
            yield
        finally:
            with output.console.capture():
                pass  # drops what the console could not write
            os.dup2(before, number)
            os.close(before)
