"""The verb that lists model architectures: architectures."""

from __future__ import annotations

from typing import Annotated

import typer

from pipeline.cli import output
from pipeline.cli.options import Json
from pipeline.errors import ConfigError


def register(app: typer.Typer) -> None:
    app.command()(architectures)


def architectures(
    write: Annotated[bool, typer.Option("--write", help="Write docs/architectures.md.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Only say whether that page is fresh; exit 2 if not.")] = False,
    as_json: Json = False,
) -> None:
    """Which model architectures the torch engine serves, and which it refuses and why."""
    from dataclasses import asdict

    from pipeline.checkpoint.architecture_page import architecture_file, architecture_page
    from pipeline.checkpoint.architectures import ARCHITECTURES, REFUSED
    from pipeline.config.places import places

    page = architecture_file(places().home)
    if check:
        if not page.is_file() or page.read_text(encoding="utf-8") != architecture_page():
            raise ConfigError(f"{page} is out of date. Run `lookahead architectures --write`.")
        output.say("the page of architectures is fresh")
    elif write:
        page.write_text(architecture_page(), encoding="utf-8")
        output.say(str(page))
    elif as_json:
        output.print_json({"served": [asdict(known) for known in ARCHITECTURES], "refused": REFUSED})
    else:
        rows = [(k.name, k.family, k.attention, "no" if k.unquantized else "yes") for k in ARCHITECTURES]
        output.table(["architecture", "family", "attention", "int8"], rows)
        output.table(["refused", "because"], list(REFUSED.items()))
