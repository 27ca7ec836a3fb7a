"""What the verbs that measure share: their options, the engine, and the server that is asked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli import output
from pipeline.cli.options import resolve

if TYPE_CHECKING:
    from pipeline.engine.artifact import Artifact

Data = Annotated[
    Path | None, typer.Option("--data", help="JSON Lines of {id, task, prompt} or {id, task, turns}, or text.")
]
Strategies = Annotated[
    str | None, typer.Option("--strategies", help="E.g. none,trie,hybrid; default: all that the profile drafts for.")
]
MaxNewTokens = Annotated[int, typer.Option("--max-new-tokens", min=1, help="Longest output.")]
Raw = Annotated[bool, typer.Option("--raw", help="Prompts as they are, without the chat template.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Of sampled outputs.")]
AllowRemote = Annotated[bool, typer.Option("--allow-remote", help="The server may be another machine.")]


def built_artifact(model: str, profile: str, overrides: list[str] | None) -> Artifact:
    """The engine, built if it is not there."""
    resolved = resolve(model, profile, overrides)
    from pipeline.config.places import places
    from pipeline.tuning.planned_engine import planned_engine

    return planned_engine(resolved, places(), note=output.note).artifact


def running_server(artifact: Artifact | None = None) -> str | None:
    """gRPC address of the server that `lookahead serve` has started, if any; with an artefact, if it serves that."""
    from pipeline.config.places import places
    from pipeline.serving.road import run_dir
    from pipeline.serving.server import find_server

    state = find_server(run_dir(places()))
    if state is None:
        return None
    wanted = None if artifact is None else (artifact.manifest.model, artifact.manifest.profile)
    return state.grpc_url if wanted in (None, (state.model, state.profile)) else None


def check_url(url: str | None, allow_remote: bool) -> None:
    if url is not None:
        from pipeline.bench.remote import check_address

        check_address(url, allow_remote)
