"""Resolves the names of a model and a profile, and overrides, to a checked ResolvedConfig with a value for every
"auto"."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeVar

import yaml
from pydantic import ValidationError

from pipeline.config.faults import Fault, KeyPath, faults_of_validation, origin_of, raise_faults, without
from pipeline.config.folders import Folders, expanded, folders
from pipeline.config.hardware import Hardware, detect_hardware
from pipeline.config.loading import (
    RESOLVED,
    RawSettings,
    find_model,
    find_profile,
    names_in,
    parse_overrides,
    read_settings,
    shown,
    with_overrides,
)
from pipeline.config.registry import AUTO, BackendSettings, backend_names, load_backend
from pipeline.config.rules import faults_of_pair, faults_of_profile, lookahead_for
from pipeline.config.schema import (
    Device,
    DraftingConfig,
    EngineConfig,
    Frozen,
    GgufCheckpoint,
    LocalCheckpoint,
    ModelConfig,
    ProfileConfig,
    ResolvedConfig,
    TrieDraftConfig,
)
from pipeline.config.yaml_text import FastDumper, parse_yaml
from pipeline.errors import ConfigError
from pipeline.files import is_url

_Schema = TypeVar("_Schema", bound=Frozen)


class _Resolution(NamedTuple):
    """resolved: None if faults prevent it. faults: of both files and of their combination."""

    resolved: ResolvedConfig | None
    faults: list[Fault]


class _Validated(NamedTuple):
    """value: settings, with defaults for faulty ones; None if defaults are not enough. bad: keys with faults."""

    value: Frozen | None
    faults: list[Fault]
    bad: set[KeyPath]


def resolve_config(
    model: str | ModelConfig,
    profile: str,
    overrides: Sequence[str] = (),
    *,
    where: Folders | None = None,
    hardware: Hardware | None = None,
    backend_rules: bool = True,
    note: Callable[[str], None] = lambda text: None,
) -> ResolvedConfig:
    """Read a model and a profile, apply overrides, check and resolve. model: its name, or its settings. backend_rules:
    False skips the checks of the backend. note: called for each setting that is clipped to the model's limits. Raises
    ConfigError with all faults of both files and of their combination."""
    where, hardware = where or folders(), hardware or detect_hardware()
    raw_model, raw_profile = _raw_model(model, where), read_settings(find_profile(profile, where))
    known_profiles = names_in(where.profiles)

    def resolved_with(more: Sequence[str], note: Callable[[str], None] = lambda text: None) -> _Resolution:
        asked = (*overrides, *more)
        return _resolve(raw_model, raw_profile, asked, known_profiles, hardware, backend_rules, note)

    resolved, faults = resolved_with((), note)
    raise_faults([_with_checked_fix(each, faults, resolved_with) for each in faults])
    assert resolved is not None, "no faults, so both files are valid"
    return resolved


def _resolve(
    raw_model: RawSettings,
    raw_profile: RawSettings,
    overrides: Sequence[str],
    known_profiles: Sequence[str],
    hardware: Hardware,
    backend_rules: bool,
    note: Callable[[str], None],
) -> _Resolution:
    model_overrides, profile_overrides, faults = parse_overrides(overrides)
    raw_model = with_overrides(raw_model, model_overrides, ("model",))
    raw_profile = _clipped(with_overrides(raw_profile, profile_overrides), raw_model, note)

    checked_model = _validate(raw_model, ModelConfig, ("model",))
    checked_profile = _validate(raw_profile, ProfileConfig, ())
    faults += [*checked_model.faults, *checked_profile.faults]
    conflicts: list[Fault] = []
    resolved: ResolvedConfig | None = None
    if isinstance(valid := checked_profile.value, ProfileConfig):
        name = valid.backend
        if name == AUTO:
            name = next(each for each in backend_names() if load_backend(each).fits(valid, hardware))
        backend: BackendSettings = load_backend(name)
        device = backend.device(valid, hardware) if valid.device == "auto" else valid.device
        complete = valid.model_copy(update={"backend": name, "device": device})
        conflicts += [*faults_of_profile(complete), *backend.profile_faults(complete, hardware)]
        if isinstance(checked_model.value, ModelConfig):
            conflicts += faults_of_pair(checked_model.value, complete, known_profiles)
            resolved = _resolved(checked_model.value, complete, name, device)
            conflicts += backend.faults(resolved) if backend_rules else ()
    bad = {("model", *key) for key in checked_model.bad} | checked_profile.bad
    faults += [_located(conflict, raw_model, raw_profile) for conflict in conflicts if not _rests_on(conflict, bad)]
    return _Resolution(resolved, faults)


def _with_checked_fix(
    fault: Fault, all_faults: Sequence[Fault], resolved_with: Callable[[Sequence[str]], _Resolution]
) -> Fault:
    """Add to a fault the first of its fixes that removes it without causing another one."""
    known = {each.key for each in all_faults} - {fault.key}
    for fix in fault.fixes:
        if {each.key for each in resolved_with([fix]).faults} <= known:
            return replace(fault, remedy=f"{fault.remedy} Checked: --set {fix} helps.".lstrip())
    return fault


def load_model_config(name: str, where: Folders | None = None) -> ModelConfig:
    """Load one model. Raises ConfigError with all its faults."""
    return _load(_raw_model(name, where or folders()), ModelConfig)


def load_profile(name: str, where: Folders | None = None) -> ProfileConfig:
    """Load one profile. Raises ConfigError with the faults of its settings, not of their combination."""
    return _load(read_settings(find_profile(name, where or folders())), ProfileConfig)


def dump_resolved(resolved: ResolvedConfig) -> str:
    """Text in YAML that `load_resolved` reads back to an equal value. Its dump has the same bytes again."""
    return yaml.dump(
        resolved.model_dump(mode="json"), Dumper=FastDumper, sort_keys=False, allow_unicode=True, width=120
    )


def load_resolved(path: Path) -> ResolvedConfig:
    """Read a file of `dump_resolved` (YAML or JSON). Raises ConfigError if it is not a resolved config."""
    try:
        data = parse_yaml(path.read_text(encoding="utf-8")).data
    except (OSError, ValueError) as error:
        raise ConfigError(f"{shown(path)} cannot be read: {error}.") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{shown(path)} is not a resolved config: it should contain keys and values.")
    return _load(RawSettings(data, {(): shown(path)}), ResolvedConfig)


def _raw_model(model: str | ModelConfig, where: Folders) -> RawSettings:
    if isinstance(model, ModelConfig):
        return RawSettings(model.model_dump(mode="json"), {(): f"the settings of {model.name}"})
    # Served models read resolved configs without the libraries that this module needs.
    from pipeline.config.bare_checkpoint import (
        is_repository,
        settings_from_folder,
        settings_from_gguf,
        settings_from_hub,
    )

    try:
        path = find_model(model, where)
    except ConfigError:
        if not is_repository(model) or expanded(model).exists():
            raise
        return settings_from_hub(model)
    if path.is_dir():
        return settings_from_folder(path)
    if path.name == RESOLVED:
        return _raw_model(_built_with(path).model, where)
    return settings_from_gguf(path) if path.suffix.lower() == ".gguf" else read_settings(path)


def _built_with(path: Path) -> ResolvedConfig:
    """The settings of an engine. Raises ConfigError if they are of another version."""
    try:
        return load_resolved(path)
    except ConfigError as error:
        raise ConfigError(
            f"{shown(path)} was written by another version of this program. Name the model's YAML, checkpoint or "
            "repository instead of the engine."
        ) from error


def _clipped(profile: RawSettings, model: RawSettings, note: Callable[[str], None]) -> RawSettings:
    """Clip the lengths of a profile to the model's context. Overrides are not clipped: they cause a fault."""
    context = model.data.get("max_position_embeddings")
    if type(context) is not int or context < 1:
        return profile
    data = copy.deepcopy(profile.data)

    def clip(section: str, key: str, default: int, most: int, limit: str) -> None:
        settings = data.setdefault(section, {})
        if not isinstance(settings, dict):
            return
        is_override = key in settings and origin_of((section, key), profile.origins) == "--set"
        if not is_override and type(asked := settings.get(key, default)) is int and asked > most:
            settings[key] = most
            note(f"{section}.{key}: {asked} lowered to {most}, {limit}")

    engine, drafting = EngineConfig(), DraftingConfig()
    clip("engine", "max_seq_len", engine.max_seq_len, context, f"the context of {model.data.get('name')}")
    for section, default in (("engine", engine.max_draft_tokens), ("drafting", drafting.max_draft_tokens)):
        clip(section, "max_draft_tokens", default, context // 4, "a quarter of the model's context")
    return replace(profile, data=data)


def _load(raw: RawSettings, schema: type[_Schema]) -> _Schema:
    checked = _validate(raw, schema, ())
    raise_faults(checked.faults)
    assert isinstance(checked.value, schema), "no faults, so the value is valid"
    return checked.value


def _validate(raw: RawSettings, schema: type[Frozen], prefix: KeyPath) -> _Validated:
    try:
        return _Validated(_parse(raw.data, schema), list(raw.faults), set())
    except ValidationError as error:
        faults = faults_of_validation(error, schema, raw.data, raw.origins, prefix)
        bad = {fault.path[len(prefix) :] for fault in faults}
        try:  # without the faulty settings, so that combinations of the others are checked too
            return _Validated(_parse(without(raw.data, bad), schema), [*raw.faults, *faults], bad)
        except ValidationError:
            return _Validated(None, [*raw.faults, *faults], bad)


def _parse(data: dict[str, object], schema: type[_Schema]) -> _Schema:
    # JSON mode, because strict Python mode would refuse the lists and integers that YAML gives for tuples and floats.
    return schema.model_validate_json(json.dumps(data, default=str), strict=True)


def _resolved(model: ModelConfig, profile: ProfileConfig, backend: str, device: Device) -> ResolvedConfig:
    model, profile = _with_absolute_checkpoint(model), _with_absolute_snapshots(profile)
    return ResolvedConfig(
        model=model,
        profile=profile,
        backend=backend,
        device=device,
        dtype=model.dtype if device == "cpu" else model.gpu_dtype,
        lookahead=lookahead_for(model, profile.name),
    )


def _located(fault: Fault, model: RawSettings, profile: RawSettings) -> Fault:
    """Return the fault with the file and line of its setting, or the override that set it."""
    if fault.path[0] == "model":
        return replace(fault, where=origin_of(fault.path[1:], model.origins))
    return replace(fault, where=origin_of(fault.path, profile.origins))


def _rests_on(fault: Fault, bad: set[KeyPath]) -> bool:
    """Whether a setting of the fault, or a mapping around it, is faulty itself. bad: faulty keys."""
    used = [tuple(key.split(".")) for key in fault.uses or (fault.key,)]
    return any(path[: len(each)] == each for path in used for each in bad)


def _with_absolute_checkpoint(model: ModelConfig) -> ModelConfig:
    checkpoint = model.checkpoint
    if not isinstance(checkpoint, LocalCheckpoint | GgufCheckpoint):
        return model
    return model.model_copy(update={"checkpoint": checkpoint.model_copy(update={"path": _absolute(checkpoint.path)})})


def _with_absolute_snapshots(profile: ProfileConfig) -> ProfileConfig:
    sources = tuple(
        source.model_copy(update={"snapshot": _absolute(source.snapshot)})
        if isinstance(source, TrieDraftConfig) and source.snapshot is not None and not is_url(source.snapshot)
        else source
        for source in profile.drafting.sources
    )
    return profile.model_copy(update={"drafting": profile.drafting.model_copy(update={"sources": sources})})


def _absolute(path: str) -> str:
    return str(expanded(path).resolve())
