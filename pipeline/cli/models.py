"""Commands that list the models and the profiles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from pipeline.cli import output
from pipeline.cli.options import DEFAULT_MODEL, DEFAULT_PROFILE, Json, Model
from pipeline.config.folders import folders
from pipeline.errors import ConfigError

if TYPE_CHECKING:
    from pipeline.config.folders import Folders
    from pipeline.config.schema import Frozen, ModelConfig, ProfileConfig
    from pipeline.server.memory_fit import MemoryFit

Entry = TypeVar("Entry", bound="Frozen")
Cells = tuple[object, ...]


def models(as_json: Json = False) -> None:
    """List the models that --model can name, with the memory that each needs on this machine's CPU."""
    from pipeline.checkpoint.fetch import describe_source
    from pipeline.config.loading import built_models, names_in
    from pipeline.config.resolution import load_model_config, load_profile

    where = folders()

    def cells(model: ModelConfig, fit: Cells) -> Cells:
        source = describe_source(model)
        built = _built(model.name, where)
        return (model.name, _count(model.num_parameters), model.max_position_embeddings, *fit, source, built)

    load_profile(DEFAULT_PROFILE, where)  # reports its faults once, not for every model
    names = names_in(where.models)
    found, faults = _find(names, load_model_config, lambda name: (name, DEFAULT_PROFILE), where)
    columns = ("model", "parameters", "context", "memory", "fits here", "checkpoint", "built for")
    _show(found, columns, cells, f"profile {DEFAULT_PROFILE}", as_json)
    if others := sorted(built_models(where).keys() - set(names)):
        output.note(f"--model also takes the names of engines built without a model config: {', '.join(others)}")
    _refuse(faults)


def profiles(model: Model = DEFAULT_MODEL, as_json: Json = False) -> None:
    """List the profiles that --profile can name, with the memory that each needs for a model on this machine's CPU."""
    from pipeline.config.loading import names_in
    from pipeline.config.resolution import load_model_config, load_profile

    where = folders()

    def cells(profile: ProfileConfig, fit: Cells) -> Cells:
        engine, drafting = profile.engine, profile.drafting
        sizes = engine.max_batch_size, engine.max_seq_len, drafting.strategy, drafting.max_draft_tokens
        return (profile.name, *sizes, *fit, profile.description)

    load_model_config(model, where)  # reports its faults once, not for every profile
    found, faults = _find(names_in(where.profiles), load_profile, lambda name: (model, name), where)
    columns = ("profile", "batch", "context", "strategy", "draft tokens", "memory", "fits here", "")
    _show(found, columns, cells, f"model {model}", as_json)
    _refuse(faults)


def _find(
    names: Iterable[str],
    load: Callable[[str, Folders], Entry],
    pair_of: Callable[[str], tuple[str, str]],
    where: Folders,
) -> tuple[list[tuple[Entry, MemoryFit]], list[ConfigError]]:
    """Return the configs with the memory that each needs, and the faults of the others. pair_of: the model and the
    profile for the estimate."""
    from pipeline.config.hardware import Hardware
    from pipeline.config.resolution import resolve_config
    from pipeline.engine.memory import available_bytes
    from pipeline.server.memory_fit import memory_fit

    available, hardware = available_bytes(), Hardware(gpu=None, compute_capability=0, has_tensorrt_llm=False)
    overrides = ("device=cpu", "backend=torch")
    found, faults = [], []
    for name in names:
        try:
            entry, pair = load(name, where), pair_of(name)
            resolved = resolve_config(*pair, overrides, where=where, hardware=hardware, backend_rules=False)
        except ConfigError as error:  # noqa: PERF203  # a faulty file must not hide the others
            faults.append(error)
        else:
            found.append((entry, memory_fit(resolved, available)))
    return found, faults


def _show(
    found: Sequence[tuple[Entry, MemoryFit]],
    columns: Sequence[str],
    cells: Callable[[Entry, Cells], Cells],
    subject: str,
    as_json: bool,
) -> None:
    """Print configs with the memory that each needs. cells: function that makes a row from a config and two texts about
    memory. subject: what the estimate is for, in the note."""
    from pipeline.checkpoint.disk import gigabytes
    from pipeline.engine.memory import available_bytes

    if as_json:
        output.print_json([entry.model_dump(mode="json") | fit._asdict() for entry, fit in found])
        return
    output.table(columns, [cells(entry, (gigabytes(fit.needed_bytes), _fits(fit))) for entry, fit in found])
    available = gigabytes(available_bytes())
    output.note(f"memory: estimate for the torch engine on a CPU, {subject}; {available} are available here")


def _refuse(faults: Sequence[ConfigError]) -> None:
    """Raise one ConfigError for the configs that are not listed, if there are any."""
    if faults:
        raise ConfigError("not listed: " + "\nnot listed: ".join(map(str, faults)))


def _fits(fit: MemoryFit) -> str:
    return "no" if fit.setting is None else f"with --set {fit.setting}" if fit.setting else "yes"


def _count(number: int) -> str:
    if number >= 1e9:
        return f"{number / 1e9:.1f} B"
    return f"{number / 1e6:.0f} M" if number >= 1e6 else f"{number / 1e3:.0f} K"


def _built(model: str, where: Folders) -> str:
    from pipeline.engine.artifact import artifacts_of

    return ", ".join(sorted({folder.name for folder in artifacts_of(where, model)})) or "-"
