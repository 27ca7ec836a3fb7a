"""The verbs below `lookahead dev`, which write the generated files: schema, architectures, versions."""

from __future__ import annotations

from typing import Annotated

import typer

from pipeline.cli import output
from pipeline.cli.options import Json
from pipeline.errors import ConfigError


def register(app: typer.Typer) -> None:
    dev = typer.Typer(help="Write or check the generated files of the repository.", no_args_is_help=True)
    for command in (schema, architectures, versions):
        dev.command()(command)
    app.add_typer(dev, name="dev")


def schema(
    check: Annotated[
        bool, typer.Option("--check", help="Only say whether the files are fresh; exit 2 if not.")
    ] = False,
) -> None:
    """Write the JSON schemas of models, profiles and resolved configs, for editors that complete and check YAML."""
    from pipeline.config.places import places
    from pipeline.config.schema_files import stale_schemas, write_schemas

    folder = places().home / "configs" / "schema"
    if check:
        if stale := stale_schemas(folder):
            raise ConfigError(f"Out of date in {folder}: {', '.join(stale)}. Run `lookahead dev schema`.")
        output.say("schemas are fresh")
        return
    for path in write_schemas(folder):
        output.say(str(path))


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
            raise ConfigError(f"{page} is out of date. Run `lookahead dev architectures --write`.")
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


def versions(
    write: Annotated[bool, typer.Option("--write", help="Put the tables into docs/how-to/tensorrt-llm.md.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Only say whether they stand there; exit 2 if not.")] = False,
    as_json: Json = False,
) -> None:
    """Which container holds which TensorRT-LLM, and what the backend needs."""
    from pipeline.cli.version_page import is_fresh, version_page, write_page
    from pipeline.config.places import places
    from pipeline.config.registry import backend_names
    from pipeline.engine.backend import backend_of
    from pipeline.errors import ConfigError

    tables = {name: found for name in backend_names() if (found := backend_of(name).version_tables())}
    if check or write:
        for name in tables:
            page = version_page(places().home, name)
            if check and not is_fresh(page, name):
                raise ConfigError(
                    f"The version tables in {page} are out of date. Run `lookahead dev versions --write`."
                )
            if write:
                write_page(page, name)
            output.say(f"{page}: {'fresh' if check else 'written'}")
    elif as_json:
        output.print_json({name: [table._asdict() for table in found] for name, found in tables.items()})
    else:
        for table in [table for found in tables.values() for table in found]:
            output.table(table.columns, table.rows)
