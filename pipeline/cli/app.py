"""Puts the command together from one module per group of verbs.

How to add commands
    * Write `pipeline/cli/<group>.py` with `def register(app: typer.Typer) -> None`, which calls
      `app.command()(function)` for each verb (or `app.add_typer(...)` for a verb with sub-verbs, such as `trie`), and
      name the module in GROUPS below. Work of a verb that no room below has a place for lies in modules named after
      it, such as `doctor_machine`.
    * At import time a group imports only the standard library, typer, `pipeline.errors`, `pipeline.cli.options`,
      `pipeline.cli.lists`, `pipeline.cli.measuring` and `pipeline.cli.output`. Everything else (torch, transformers,
      numpy, pydantic, our own rooms) is imported inside the functions: `lookahead --help` reads every group and must
      start in a fraction of a second.
    * Options that several verbs share come from `options`: `model: Model = DEFAULT_MODEL`, `profile: Profile =
      DEFAULT_PROFILE`, `overrides: Set = None`, `dry_run: DryRun = False`, `as_json: Json = False`.
      `options.resolve(model, profile, overrides)` gives the ResolvedConfig. Further options are written
      `Annotated[type, typer.Option("--name", help=...)]`.
    * A verb that needs the engine calls `pipeline.tuning.planned_engine.planned_engine(resolved, places(),
      note=output.note).artifact`, which builds what is missing and takes milliseconds otherwise; one that must not
      build calls `pipeline.engine.artifact.load_artifact(artifact_dir(places(), model, profile), places().cache)`.
    * What the user can fix is raised as a `pipeline.errors.UserError`; `pipeline.cli.main` prints it on stderr and
      exits with 2. Nothing else is caught: a bug leaves its trace and exits with 1. Exit codes of a verb's own: `raise
      typer.Exit(code)`.
    * Results go to stdout (`output.say`, `output.table`, `output.print_json`), progress and remarks to stderr
      (`output.note`, `output.steps`, `output.progress`), so that `--json` can be piped.
"""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points

import typer
from typer.models import CommandInfo, TyperInfo

# Entry points of packages that add a group of verbs: functions that return a typer.Typer.
PLUGINS = "lookahead.commands"

GROUPS = (
    *("look", "doctor", "build", "server", "key", "clients", "batch"),
    *("bench", "verify", "tune", "trie", "validate", "dev"),
)

# Verbs as `lookahead --help` shows them, by what users do with them.
PANELS = {
    "Serve": ("demo", "models", "profiles", "doctor", "engine", "repo", "serve", "status", "switch", "stop", "key"),
    "Talk": ("chat", "generate", "batch"),
    "Measure": ("verify", "bench", "load", "report", "tune", "validate-gpu"),
    "Maintain": ("trie", "clean", "dev"),
    "Research": ("research",),
}


def build_app() -> typer.Typer:
    """The command with all groups registered."""
    app = typer.Typer(
        name="lookahead",
        help="Lossless low-latency LLM serving on Triton: checkpoint -> engine -> model repository -> server.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(_root)
    for group in GROUPS:
        importlib.import_module(f"pipeline.cli.{group}").register(app)
    for plugin in entry_points(group=PLUGINS):
        app.add_typer(plugin.load()(), name=plugin.name)
    _group_in_panels(app)
    return app


def verb_name(verb: CommandInfo | TyperInfo) -> str:
    """Return the word that runs a verb or a group of verbs."""
    return verb.name or getattr(verb.callback, "__name__", "").replace("_", "-")


def _group_in_panels(app: typer.Typer) -> None:
    """Put each verb into its panel, in the order of PANELS; other verbs, of plugins for instance, come last."""
    order = {verb: (panel, place) for place, (panel, verb) in enumerate((p, v) for p, vs in PANELS.items() for v in vs)}
    verbs: list[CommandInfo | TyperInfo] = [*app.registered_commands, *app.registered_groups]
    for verb in verbs:
        verb.rich_help_panel = order.get(verb_name(verb), ("Commands", len(order)))[0]
    app.registered_commands.sort(key=lambda verb: order.get(verb_name(verb), ("", len(order)))[1])


def _root(
    version: bool = typer.Option(False, "--version", help="Print the version and leave.", is_eager=True),
) -> None:
    if version:
        from pipeline import __version__

        print(__version__)
        raise typer.Exit
