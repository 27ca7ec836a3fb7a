"""Builds the command line application.

To add a command, write a function with its name, or a `typer.Typer` for one with subcommands, in a module of this
package, and add both to PANELS. `lookahead --help` imports all of these modules and must start in a fraction of
a second. So at import time they import only light modules, such as typer, `pipeline.errors`, `pipeline.cli.options` and
`pipeline.cli.output`; their functions import everything else.

`options` has the options that several commands share, `resolve` for a model and a profile, and `built_artifact` for
their engine. Raise `pipeline.errors.UserError` for what the user can fix: `pipeline.cli.main` prints it on stderr and
exits with 2. Catch nothing else: a bug prints its trace and exits with 1. Results go to stdout (`output.say`,
`output.table`, `output.print_json`), progress and notes to stderr, so that the output of `--json` can be piped.
"""

from __future__ import annotations

import importlib
import inspect
import os
import signal
import sys
from importlib.metadata import entry_points
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from pipeline.cli import output
from pipeline.errors import UserError

# Entry points of installed packages that add commands: functions that return a typer.Typer.
PLUGINS = "lookahead.commands"

# The commands in the panels of `lookahead --help`, by the user's task, with the modules that define them.
PANELS = {
    "Serve": {
        **{"demo": "clients", "models": "models", "profiles": "models", "doctor": "doctor", "engine": "build"},
        **{"repo": "build", "serve": "server", "status": "server", "switch": "server", "stop": "server", "key": "key"},
    },
    "Query": {"chat": "clients", "generate": "clients", "batch": "clients"},
    "Measure": {
        **{"verify": "verify", "bench": "bench", "load": "load", "api-overhead": "load", "report": "bench"},
        **{"tune": "tune", "validate-gpu": "validate"},
    },
    "Maintain": {"trie": "trie", "clean": "build", "dev": "dev"},
}


class _Command(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _without_flag_types(super().get_params(ctx))


class _Group(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
        except typer.Exit:
            sys.stdout.flush()
            raise
        sys.stdout.flush()  # reports a reader that has ended now; at its end Python would print an error
        return result

    def main(self, *arguments: Any, **options: Any) -> Any:
        """Run a command. If the reader of stdout has ended, as in `| head`, exit as after SIGPIPE."""
        try:
            return super().main(*arguments, **options)
        except (BrokenPipeError, SystemExit, UserError) as end:
            error = end if isinstance(end, BrokenPipeError) else end.__context__
            if isinstance(error, BrokenPipeError) and output.has_lost_reader():
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python flushes stdout at its end
                raise SystemExit(128 + signal.SIGPIPE) from error
            if isinstance(error, BrokenPipeError) and not isinstance(end, UserError):  # typer exits without a message
                raise RuntimeError("a process or a server closed its connection") from error
            raise

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_flag_types(super().get_params(ctx))


def _without_flag_types(parameters: list[Any]) -> list[Any]:
    """Show flags without a type in the help: typer's `<bool>` looks as if they took a value."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return parameters


def build_app() -> typer.Typer:
    """The application with all commands. Raises UserError if those of an installed package cannot be loaded."""
    app = typer.Typer(
        name="lookahead",
        cls=_Group,
        help="Lossless low-latency LLM serving on Triton: checkpoint -> engine -> model repository -> server.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(_root)
    for panel, modules in PANELS.items():
        for name, module in modules.items():
            command = getattr(importlib.import_module(f"pipeline.cli.{module}"), name.replace("-", "_"))
            if isinstance(command, typer.Typer):
                app.add_typer(command, name=name, rich_help_panel=panel)
            else:
                app.command(name, rich_help_panel=panel)(command)
    for plugin in entry_points(group=PLUGINS):
        panel = plugin.name.capitalize()
        try:
            app.add_typer(plugin.load()(), name=plugin.name, rich_help_panel=panel)
        except ImportError as error:
            raise UserError(
                f"The commands `{plugin.name}` of an installed package cannot be loaded: {error}. Install the package "
                "again, or remove it."
            ) from error
    _adjust_help(app)
    return app


def _adjust_help(app: typer.Typer) -> None:
    """Show flags without a type, and let the terminal's width break the lines of each help text: typer keeps those of
    the docstring."""
    for command in app.registered_commands:
        command.cls = _Command
        paragraphs = inspect.cleandoc(command.help or inspect.getdoc(command.callback) or "").split("\n\n")
        command.help = "\n\n".join(paragraph.replace("\n", " ") for paragraph in paragraphs)
    for group in app.registered_groups:
        group.cls = _Group
        if group.typer_instance:
            _adjust_help(group.typer_instance)


def _root(
    version: bool = typer.Option(False, "--version", help="Print the version and exit.", is_eager=True),
) -> None:
    if version:
        from pipeline import __version__

        print(__version__)
        raise typer.Exit
