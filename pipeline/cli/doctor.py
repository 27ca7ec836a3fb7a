"""The command `doctor`, which examines this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from pipeline.cli import output
from pipeline.cli.options import DEFAULT_MODEL, DEFAULT_PROFILE, Json, Set

_MARKS = {"ok": "ok", "note": "-", "fail": "FAIL"}


def doctor(
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Model to check: report what would be refused.")
    ] = None,
    profile: Annotated[str | None, typer.Option("--profile", "-p", help="Profile to check.")] = None,
    overrides: Set = None,
    as_json: Json = False,
) -> None:
    """Check what this machine can build and serve, and report how to fix what is missing.

    With --model, --profile or --set it also reports what would be refused for them, e.g. --set backend=tensorrt_llm.
    """
    from pipeline.cli.doctor_machine import examine_config, examine_machine

    findings = examine_machine()
    if model is not None or profile is not None or overrides:
        findings += examine_config(model or DEFAULT_MODEL, profile or DEFAULT_PROFILE, tuple(overrides or ()))
    if as_json:
        output.print_json([finding._asdict() for finding in findings])
    else:
        output.table(["", "part", "found"], [(_MARKS[f.state], f.part, f.found) for f in findings])
        for finding in findings:
            if finding.remedy:
                output.say(f"{finding.part}: {finding.remedy}")
    if any(finding.state == "fail" for finding in findings):
        raise typer.Exit(2)
