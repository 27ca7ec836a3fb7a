"""The command line on the tiny random model, in this process."""

from __future__ import annotations

from typer.testing import Result

from pipeline.cli.app import build_app
from tests.command_line import invoke

MODEL = ("--model", "tiny-random-llama", "--profile", "latency", "--set", "device=cpu", "--set", "backend=torch")


def lookahead(*arguments: object) -> Result:
    return invoke(build_app(), *arguments)
