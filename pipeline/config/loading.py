"""Reads a model or a profile: YAML file, merged over its base, with overrides. Records where each setting was
written.

`resolution` validates the settings later, to report faults of the model, the profile and their combination together.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config.faults import TAGS, Fault, KeyPath, did_you_mean
from pipeline.config.folders import SHIPPED, Folders, expanded
from pipeline.config.yaml_text import parse_yaml
from pipeline.errors import ConfigError

# File of an engine's settings, in <engines>/<model>/<profile>/.
RESOLVED = "resolved.yaml"
_LOOKAHEAD_SIZES = ("max_window_size", "max_ngram_size", "max_verification_set_size")


@dataclass(frozen=True, slots=True)
class RawSettings:
    """Settings as written, not validated yet. origins: for the root () and each key, "file:line" or the override that
    set it."""

    data: dict[str, Any]
    origins: dict[KeyPath, str]
    faults: tuple[Fault, ...] = ()


def names_in(folders: Iterable[Path]) -> list[str]:
    """Names of the configs in the folders, without bases, which are in a subfolder, and without hidden files, such as
    those of editors."""
    return sorted({path.stem for folder in folders for path in folder.glob("[!.]*.yaml") if path.is_file()})


def built_models(folders: Folders) -> dict[str, Path]:
    """The settings of the latest engine of each model, by the model's name."""
    paths = [path for folder in folders.engine_folders for path in folder.glob(f"[!.]*/[!.]*/{RESOLVED}")]
    return {path.parents[1].name: path for path in sorted(paths, key=lambda path: path.stat().st_mtime)}


def find_model(name: str, folders: Folders) -> Path:
    """Path of a model YAML, a checkpoint folder, a GGUF file, or the settings of an engine. Raises ConfigError with a
    suggestion."""
    other = "a path to a YAML, a checkpoint folder or a GGUF file, or owner/name on the Hugging Face hub"
    return _find(name, folders.models, "model", other, lambda: built_models(folders))


def find_profile(name: str, folders: Folders) -> Path:
    """Path of a profile YAML. Raises ConfigError with a suggestion."""
    return _find(name, folders.profiles, "profile", "a path to a YAML")


def _find(
    name: str, folders: Iterable[Path], kind: str, other: str, built: Callable[[], Mapping[str, Path]] = dict
) -> Path:
    if not name.strip():
        raise ConfigError(f"The name of the {kind} is empty. Known {kind}s: {', '.join(names_in(folders))}.")
    is_path = name.startswith(("./", "../", "/", "~"))  # even where a config has that name
    for folder in () if is_path else folders:
        if (found := folder / f"{name}.yaml").is_file():
            return found
    path = expanded(name)
    if path.suffix in (".yaml", ".yml") and path.is_file():
        return path
    if kind == "model" and (path.is_dir() or (path.suffix.lower() == ".gguf" and path.is_file())):
        return path
    engines = built()
    if name in engines:
        return engines[name]
    if "/" in name or path.exists() or path.suffix.lower() in (".yaml", ".yml", ".gguf"):
        missing = f"There is no {kind} '{name}': the path does not exist"
        fault = f"'{name}' is not a {kind}" if path.exists() else missing
        raise ConfigError(f"{fault}. Give a name of `lookahead {kind}s`, or {other}.")
    known = sorted({*names_in(folders), *engines})
    raise ConfigError(
        f"There is no {kind} '{name}'.{did_you_mean(name, known)} Known {kind}s: {', '.join(known)}; {other} works too."
    )


def read_settings(path: Path) -> RawSettings:
    """Read a file's settings and merge them over those of its base. `name` is the file name. Raises ConfigError if the
    file or its base cannot be read as YAML."""
    raw = _read_yaml(path)
    faults = list(raw.faults)
    data, origins = dict(raw.data), dict(raw.origins)
    base_name = data.pop("base", None)
    if base_name is not None:
        where = origins.pop(("base",))
        folders = [path.parent, *(SHIPPED / "configs" / kind for kind in ("models", "profiles"))]
        paths = (folder / str(base_name) for folder in folders)
        # A profile of the user's own may extend the shipped one of its name.
        base_path = next((found for found in paths if found.is_file() and not found.samefile(path)), None)
        if base_path is None:
            meant = did_you_mean(str(base_name), [f"{name}.yaml" for name in names_in(folders) if name != path.stem])
            text = f"found {base_name!r}; there is no file {shown(path.parent / str(base_name))}.{meant}"
            faults.append(Fault(("base",), text, where=where))
        else:
            base = _read_yaml(base_path)
            faults += base.faults
            if "base" in base.data:
                faults.append(Fault(("base",), "a base cannot have a base itself.", where=base.origins[("base",)]))
            written = set(origins)
            data, origins = _merge(base, RawSettings(data, origins))
            _restate_origins(data, written, "unstated")
            data.pop("base", None)
    if data.setdefault("name", path.stem) != path.stem:
        faults.append(
            Fault(
                ("name",),
                f"found {data['name']!r}; should be '{path.stem}', the name of the file.",
                where=origins[("name",)],
            )
        )
        data["name"] = path.stem
    return RawSettings(data, origins, tuple(faults))


def with_overrides(raw: RawSettings, overrides: Sequence[tuple[str, Any]], prefix: KeyPath = ()) -> RawSettings:
    """Apply overrides (dotted key, value) to settings. prefix: put before the keys in messages."""
    data, origins, faults = copy.deepcopy(raw.data), dict(raw.origins), list(raw.faults)
    for key, value in overrides:
        written = tuple(key.split("."))
        where = "--set"
        if written == ("name",):
            text = f"found {value!r}; it is the name of the file. Copy the file instead."
            faults.append(Fault(prefix + written, text, where=where))
        elif path := _put(data, written, value):
            origins = {known: origin for known, origin in origins.items() if known[: len(path)] != path}
            origins[path] = where
            for length in range(1, len(path)):  # mappings that the override created, including unknown ones
                origins.setdefault(path[:length], where)
        else:
            text = "does not exist: a part of the key is a value, or a list without that entry. Correct the key."
            faults.append(Fault(prefix + written, text, where=where))
    _restate_origins(data, {tuple(key.split(".")) for key, _ in overrides}, "set on the command line")
    return RawSettings(data, origins, tuple(faults))


def parse_overrides(texts: Sequence[str]) -> tuple[list[tuple[str, Any]], list[tuple[str, Any]], list[Fault]]:
    """Parse "KEY=VALUE" texts. Returns overrides of the model (keys that begin with "model."), overrides of the
    profile, and faults."""
    model: list[tuple[str, Any]] = []
    profile: list[tuple[str, Any]] = []
    faults = []
    for text in texts:
        key, equals, written = text.partition("=")
        key = key.strip()
        if not equals or not key or "" in key.split("."):
            faults.append(
                Fault((), f"found {text!r}; should be KEY=VALUE, e.g. engine.max_batch_size=8.", where="--set")
            )
            continue
        if key in ("model", "profile"):
            faults.append(Fault((key,), f"is no setting; name one with --{key}.", where="--set"))
            continue
        try:
            found = parse_yaml(written)
        except ValueError as error:
            faults.append(
                Fault((key,), f"found {written!r:.60}; should be a value as in YAML ({error}).", where="--set")
            )
            continue
        faults += [
            Fault((key, *inner), "is written twice; remove one.", where="--set") for inner, line in found.repeated
        ]
        if key.startswith("model."):
            model.append((key.removeprefix("model."), found.data))
        else:
            profile.append((key, found.data))
    return model, profile, faults


def shown(path: Path) -> str:
    """A path for messages, relative if it is in the working folder."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except (ValueError, FileNotFoundError):  # not below the working folder, or that was removed
        return str(path)


def _read_yaml(path: Path) -> RawSettings:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{shown(path)} cannot be read: {error}.") from error
    try:
        found = parse_yaml(text)
    except ValueError as error:
        raise ConfigError(f"{shown(path)} is not valid YAML: {error}.") from error
    data = {} if found.data is None else found.data
    if not isinstance(data, dict):
        raise ConfigError(f"{shown(path)} should contain keys and values; found a {type(data).__name__}.")
    file = shown(path)
    origins: dict[KeyPath, str] = {(): file}
    origins |= {key: f"{file}:{line}" for key, line in found.lines.items()}
    repeated = (Fault(key, "is written twice; remove one.", where=f"{file}:{line}") for key, line in found.repeated)
    return RawSettings(data, origins, tuple(repeated))


def _merge(base: RawSettings, over: RawSettings) -> tuple[dict[str, Any], dict[KeyPath, str]]:
    """Merge mappings key by key, and replace other values and mappings with another tag. Returns the
    result and the origin of each setting (see `RawSettings`)."""
    origins = dict(base.origins) | {(): over.origins[()]}

    def merge(low: Any, high: Any, path: KeyPath) -> Any:
        are_mappings = isinstance(low, Mapping) and isinstance(high, Mapping)
        if are_mappings and all(low.get(tag) == high.get(tag, low.get(tag)) for tag in TAGS):
            return {**low, **{key: merge(low.get(key), value, (*path, key)) for key, value in high.items()}}
        for known in [known for known in origins if known[: len(path)] == path and known]:
            del origins[known]
        origins.update({known: at for known, at in over.origins.items() if known[: len(path)] == path and known})
        return high

    return merge(base.data, over.data, ()), origins


def _restate_origins(data: Mapping[str, Any], written: Set[KeyPath], origin: str) -> None:
    """Replace the origin of W, N and G if an override changes one of them and not the origin."""
    lookahead = data.get("lookahead")
    for name, sizes in lookahead.items() if isinstance(lookahead, dict) else ():
        new = {key for key in _LOOKAHEAD_SIZES if ("lookahead", name, key) in written}
        if isinstance(sizes, dict) and new and ("lookahead", name, "origin") not in written:
            sizes["origin"] = origin


def _put(data: Any, path: Sequence[str], value: Any) -> KeyPath:
    """Set the value at a path below a mapping or a list. Returns the path, in which entries of lists are numbers; empty
    if it is not possible."""
    key, *rest = path
    place: str | int = key
    if isinstance(data, dict):
        data.setdefault(key, None)
    elif isinstance(data, list) and key.isdecimal() and int(key) < len(data):
        place = int(key)
    else:
        return ()
    if not rest:
        data[place] = value
        return (place,)
    if data[place] is None:
        data[place] = {}
    below = _put(data[place], rest, value)
    return (place, *below) if below else ()
