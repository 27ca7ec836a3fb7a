"""The command line on the tiny random model, in this process."""

from __future__ import annotations

from typer.testing import CliRunner, Result

from pipeline.cli.app import build_app

MODEL = ("--model", "tiny-random-llama", "--profile", "latency", "--set", "device=cpu", "--set", "backend=torch")


def lookahead(*arguments: object) -> Result:
    result = CliRunner().invoke(build_app(), [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result
