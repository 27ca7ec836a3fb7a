"""Commands that list the models and the profiles."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pipeline.cli import output
from pipeline.cli.options import DEFAULT_MODEL, DEFAULT_PROFILE, Json, Model

if TYPE_CHECKING:
    from pipeline.server.memory_fit import MemoryFit


def register(app: typer.Typer) -> None:
    app.command()(models)
    app.command()(profiles)


def models(as_json: Json = False) -> None:
    """List the models that --model can name, with the memory that each needs on this machine's CPU."""
    from pipeline.checkpoint.fetch import describe_source
    from pipeline.config.loading import names_in
    from pipeline.config.places import places
    from pipeline.config.resolution import load_model
    from pipeline.engine.memory import available_bytes
    from pipeline.server.memory_fit import memory_fit

    where, available = places(), available_bytes()
    found = [load_model(name, where) for name in names_in(where.models)]
    fits = [memory_fit(model.name, DEFAULT_PROFILE, where, available) for model in found]
    if as_json:
        output.print_json(
            [model.model_dump(mode="json") | fit._asdict() for model, fit in zip(found, fits, strict=True)]
        )
        return
    rows = [
        (
            m.name,
            _count(m.num_parameters),
            m.max_position_embeddings,
            *_fit_cells(fit),
            describe_source(m),
            _built(where.engines / m.name),
        )
        for m, fit in zip(found, fits, strict=True)
    ]
    output.table(["model", "parameters", "context", "memory", "fits here", "checkpoint", "built for"], rows)
    output.note(_explanation(f"profile {DEFAULT_PROFILE}", available))


def profiles(model: Model = DEFAULT_MODEL, as_json: Json = False) -> None:
    """List the profiles that --profile can name, with the memory that each needs for a model on this machine's CPU."""
    from pipeline.config.loading import names_in
    from pipeline.config.places import places
    from pipeline.config.resolution import load_profile
    from pipeline.engine.memory import available_bytes
    from pipeline.server.memory_fit import memory_fit

    where, available = places(), available_bytes()
    found = [load_profile(name, where) for name in names_in(where.profiles)]
    fits = [memory_fit(model, profile.name, where, available) for profile in found]
    if as_json:
        output.print_json(
            [profile.model_dump(mode="json") | fit._asdict() for profile, fit in zip(found, fits, strict=True)]
        )
        return
    rows = [
        (
            p.name,
            p.engine.max_batch_size,
            p.engine.max_seq_len,
            p.drafting.strategy,
            p.drafting.max_draft_tokens,
            *_fit_cells(fit),
            p.description,
        )
        for p, fit in zip(found, fits, strict=True)
    ]
    output.table(["profile", "batch", "context", "strategy", "draft tokens", "memory", "fits here", ""], rows)
    output.note(_explanation(f"model {model}", available))


def _fit_cells(fit: MemoryFit) -> tuple[str, str]:
    from pipeline.checkpoint.disk import gigabytes

    fits = "no" if fit.setting is None else f"with --set {fit.setting}" if fit.setting else "yes"
    return gigabytes(fit.needed_bytes), fits


def _explanation(of: str, available: int) -> str:
    from pipeline.checkpoint.disk import gigabytes

    return f"memory: estimate for the torch engine on a CPU, {of}; {gigabytes(available)} are available here"


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
