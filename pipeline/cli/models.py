"""Commands that list the models and the profiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

from pipeline.cli import output
from pipeline.cli.options import DEFAULT_MODEL, DEFAULT_PROFILE, Json, Model
from pipeline.config.places import places

if TYPE_CHECKING:
    from pipeline.config.places import Places
    from pipeline.config.schema import Frozen, ModelConfig, ProfileConfig
    from pipeline.server.memory_fit import MemoryFit

Entry = TypeVar("Entry", bound="Frozen")
Cells = tuple[object, ...]


def register(app: typer.Typer) -> None:
    app.command()(models)
    app.command()(profiles)


def models(as_json: Json = False) -> None:
    """List the models that --model can name, with the memory that each needs on this machine's CPU."""
    from pipeline.checkpoint.fetch import describe_source
    from pipeline.config.loading import built_models, names_in
    from pipeline.config.resolution import load_model

    where = places()

    def cells(model: ModelConfig, fit: Cells) -> Cells:
        source = describe_source(model)
        built = _built(where.engines / model.name)
        return (model.name, _count(model.num_parameters), model.max_position_embeddings, *fit, source, built)

    found = [load_model(name, where) for name in names_in(where.models)]
    columns = ("model", "parameters", "context", "memory", "fits here", "checkpoint", "built for")
    pairs = [(model.name, DEFAULT_PROFILE) for model in found]
    _show(found, pairs, where, columns, cells, f"profile {DEFAULT_PROFILE}", as_json)
    if others := sorted(built_models(where).keys() - {model.name for model in found}):
        output.note(f"--model also takes the names of engines built without a model config: {', '.join(others)}")


def profiles(model: Model = DEFAULT_MODEL, as_json: Json = False) -> None:
    """List the profiles that --profile can name, with the memory that each needs for a model on this machine's CPU."""
    from pipeline.config.loading import names_in
    from pipeline.config.resolution import load_profile

    where = places()

    def cells(profile: ProfileConfig, fit: Cells) -> Cells:
        engine, drafting = profile.engine, profile.drafting
        sizes = engine.max_batch_size, engine.max_seq_len, drafting.strategy, drafting.max_draft_tokens
        return (profile.name, *sizes, *fit, profile.description)

    found = [load_profile(name, where) for name in names_in(where.profiles)]
    columns = ("profile", "batch", "context", "strategy", "draft tokens", "memory", "fits here", "")
    _show(found, [(model, profile.name) for profile in found], where, columns, cells, f"model {model}", as_json)


def _show(
    found: Sequence[Entry],
    pairs: Sequence[tuple[str, str]],
    where: Places,
    columns: Sequence[str],
    cells: Callable[[Entry, Cells], Cells],
    of: str,
    as_json: bool,
) -> None:
    """Print configs with the memory that each needs. pairs: model and profile of each row. cells: function that makes a
    row from a config and two texts about memory. of: subject of the estimate, for the note."""
    from pipeline.checkpoint.disk import gigabytes
    from pipeline.config.hardware import Hardware
    from pipeline.config.resolution import resolve_config
    from pipeline.engine.memory import available_bytes
    from pipeline.server.memory_fit import memory_fit

    available, hardware = available_bytes(), Hardware(gpu=None, compute_capability=0, has_tensorrt_llm=False)
    overrides = ("device=cpu", "backend=torch")
    configs = (resolve_config(*pair, overrides, where=where, hardware=hardware, backend_rules=False) for pair in pairs)
    rows = [(entry, memory_fit(resolved, available)) for entry, resolved in zip(found, configs, strict=True)]
    if as_json:
        output.print_json([entry.model_dump(mode="json") | fit._asdict() for entry, fit in rows])
        return
    output.table(columns, [cells(entry, (gigabytes(fit.needed_bytes), _fits(fit))) for entry, fit in rows])
    output.note(f"memory: estimate for the torch engine on a CPU, {of}; {gigabytes(available)} are available here")


def _fits(fit: MemoryFit) -> str:
    return "no" if fit.setting is None else f"with --set {fit.setting}" if fit.setting else "yes"


def _count(number: int) -> str:
    if number >= 1e9:
        return f"{number / 1e9:.1f} B"
    return f"{number / 1e6:.0f} M" if number >= 1e6 else f"{number / 1e3:.0f} K"


def _built(folder: Path) -> str:
    from pipeline.engine.artifact import MANIFEST

    return ", ".join(sorted(path.parent.name for path in folder.glob(f"*/{MANIFEST}"))) or "-"
