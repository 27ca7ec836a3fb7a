"""The commands below `lookahead dev`: generated files, versions and pass times."""

from __future__ import annotations

from typing import Annotated

import typer

from pipeline.cli import options as shared
from pipeline.cli import output
from pipeline.config.folders import folders
from pipeline.errors import ConfigError, UserError
from pipeline.files import write_atomically

dev = typer.Typer(help="Tools for development: generated files, versions, pass times.", no_args_is_help=True)


@dev.command()
def generate(
    check: Annotated[
        bool, typer.Option("--check", help="Check the files without writing; exit code 2 if one is out of date.")
    ] = False,
) -> None:
    """Write the generated files: JSON schemas, with which editors check YAML, and tables in the documentation."""
    from pipeline.cli.generated import generated_files, stale_files

    files = generated_files(folders().home)
    stale = stale_files(files)
    if check and stale:
        raise ConfigError(f"Out of date: {', '.join(map(str, stale))}. Run `lookahead dev generate`.")
    for path in stale:
        write_atomically(path, files[path])
    output.say("\n".join(map(str, stale)) or "all generated files are up to date")


@dev.command()
def versions(as_json: shared.Json = False) -> None:
    """List the TensorRT-LLM version of each Triton container, and the requirements of the backend."""
    from pipeline.config.registry import backend_names
    from pipeline.engine.backend import backend_of

    tables = {name: found for name in backend_names() if (found := backend_of(name).version_tables())}
    if as_json:
        output.print_json({name: [table._asdict() for table in found] for name, found in tables.items()})
        return
    for table in [table for found in tables.values() for table in found]:
        output.table(table.columns, table.rows)


@dev.command()
def pass_times(
    model: shared.Model = shared.DEFAULT_MODEL,
    profile: shared.Profile = shared.DEFAULT_PROFILE,
    overrides: shared.Set = None,
    tokens: Annotated[str, typer.Option("--tokens", help="Tokens in a pass, separated by commas.")] = "1,8,32",
    context_len: Annotated[int, typer.Option("--context", min=1, help="Cached tokens.")] = 200,
    repeats: Annotated[int, typer.Option("--repeats", min=1, max=100, help="Passes of each size.")] = 20,
    as_json: shared.Json = False,
) -> None:
    """Measure whole passes of the CPU engine against their matrices alone."""
    from dataclasses import asdict

    from pipeline.engine.machine_load import LoadMeter
    from pipeline.engine.torch.lean.engine import LeanEngine
    from pipeline.engine.torch.lean.pass_times import pass_times as measure
    from pipeline.engine.torch.load import load_engine

    wanted = shared.resolve(model, profile, overrides)
    sizes = shared.numbers("--tokens", tokens, wanted.profile.engine.max_draft_tokens + 1)
    engine = load_engine(shared.built_artifact(wanted))
    if not isinstance(engine, LeanEngine):
        raise UserError(
            f"{model} under these settings does not run in the lean pass, which pass-times measures. Name a model of a "
            "family that docs/architectures.md lists as lean."
        )
    meter = LoadMeter()
    times = measure(engine, sizes, context_len, repeats)
    load = meter.read()
    if as_json:
        output.print_json({"times": [asdict(entry) for entry in times], "others": load.others})
        return
    output.table(
        ["tokens", "whole pass ms", "matrices alone ms", "ratio"],
        [(t.num_tokens, f"{1000 * t.whole_s:.1f}", f"{1000 * t.matrices_s:.1f}", f"{t.ratio:.2f}") for t in times],
    )
    if load.busy:
        output.note(f"the machine was busy: {load.to_text()}")
