"""Verbs that list what can be served: models, profiles."""

from __future__ import annotations

from pathlib import Path

import typer

from pipeline.cli import output
from pipeline.cli.options import Json


def register(app: typer.Typer) -> None:
    app.command()(models)
    app.command()(profiles)


def models(as_json: Json = False) -> None:
    """List the models that can be named with --model."""
    from pipeline.checkpoint.fetch import describe_source
    from pipeline.config.loading import names_in
    from pipeline.config.places import places
    from pipeline.config.resolution import load_model

    where = places()
    found = [load_model(name, where) for name in names_in(where.models)]
    if as_json:
        output.print_json([model.model_dump(mode="json") for model in found])
        return
    rows = [
        (
            m.name,
            _count(m.num_parameters),
            m.max_position_embeddings,
            describe_source(m),
            _built(where.engines / m.name),
        )
        for m in found
    ]
    output.table(["model", "parameters", "context", "checkpoint", "built for"], rows)


def profiles(as_json: Json = False) -> None:
    """List the profiles that can be named with --profile."""
    from pipeline.config.loading import names_in
    from pipeline.config.places import places
    from pipeline.config.resolution import load_profile

    where = places()
    found = [load_profile(name, where) for name in names_in(where.profiles)]
    if as_json:
        output.print_json([profile.model_dump(mode="json") for profile in found])
        return
    rows = [
        (
            p.name,
            p.engine.max_batch_size,
            p.engine.max_seq_len,
            p.drafting.strategy,
            p.drafting.max_draft_tokens,
            p.description,
        )
        for p in found
    ]
    output.table(["profile", "batch", "context", "strategy", "draft tokens", ""], rows)


def _count(number: int) -> str:
    return (
        f"{number / 1e9:.1f} B"
        if number >= 1e9
        else f"{number / 1e6:.0f} M"
        if number >= 1e6
        else f"{number / 1e3:.0f} K"
    )


def _built(folder: Path) -> str:
    from pipeline.engine.artifact import MANIFEST

    return ", ".join(sorted(path.parent.name for path in folder.glob(f"*/{MANIFEST}"))) or "-"
