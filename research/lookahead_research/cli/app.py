"""The entry point of this package: the commands of `lookahead research`."""

from __future__ import annotations

import importlib

import typer

# Each is a module of this package with a function of the same name.
VERBS = ("replay", "record", "step_time", "experiments", "bench_trie", "perplexity")


def build_app() -> typer.Typer:
    """Return the group of research commands."""
    app = typer.Typer(help="Experiments on draft sources, without a server.", no_args_is_help=True)
    for verb in VERBS:
        app.command()(getattr(importlib.import_module(f"lookahead_research.cli.{verb}"), verb))
    return app
