"""Options that several commands share, and the way from them to a ResolvedConfig."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pipeline.config.schema import ResolvedConfig

DEFAULT_MODEL = "smollm2-135m"
DEFAULT_PROFILE = "latency"
# Largest draft tree that is measured: the largest that an engine can be built for.
MOST_DRAFT_TOKENS = 2048

Model = Annotated[
    str,
    typer.Option(
        "--model", "-m", help="Name from `lookahead models`, a model YAML, or a checkpoint folder.", show_default=True
    ),
]
Profile = Annotated[str, typer.Option("--profile", "-p", help="Name from `lookahead profiles`, or a profile YAML.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override one value: engine.max_batch_size=8, or model.dtype=bfloat16 for a key of the model. Repeatable.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]


def resolve(model: str, profile: str, overrides: Sequence[str] | None = None) -> ResolvedConfig:
    """The one value from which everything is built and served. Raises ConfigError with all faults."""
    from pipeline.config.resolution import resolve_config
    from pipeline.engine.builder import conflicts_with_backend

    return resolve_config(model, profile, tuple(overrides or ()), backend_rules=conflicts_with_backend)
