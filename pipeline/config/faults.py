"""Faults of a configuration, with file and line, key, the value found, and a correct value."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from pydantic import BaseModel, ValidationError

from pipeline.errors import ConfigError

KeyPath = tuple[str | int, ...]

# Keys that select the type of a union. pydantic puts their value into the path of an error.
TAGS = ("source", "kind")
_TYPES = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "list[int]": "a list of whole numbers",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One wrong setting. path: of the setting; begins with "model" for a setting of the model. reason: the value found
    and why it is wrong. remedy: how to fix it. uses: settings whose combination is wrong; if empty, the setting alone.
    fixes: overrides, any of which may help; `resolve_config` shows the first that it has verified. where: file and
    line, or the override."""

    path: KeyPath
    reason: str
    remedy: str = ""
    uses: tuple[str, ...] = ()
    fixes: tuple[str, ...] = ()
    where: str = ""

    @property
    def key(self) -> str:
        return dotted(self.path)

    @property
    def text(self) -> str:
        return f"{self.reason} {self.remedy}".rstrip()

    def __str__(self) -> str:
        return f"{self.where}: {self.key}: {self.text}" if self.path else f"{self.where}: {self.text}"


def fault(key: str, reason: str, remedy: str = "", uses: tuple[str, ...] = (), fixes: tuple[str, ...] = ()) -> Fault:
    """A fault of the setting with this dotted key. For the other arguments see `Fault`."""
    return Fault(tuple(key.split(".")), reason, remedy, uses, fixes)


def raise_faults(faults: Sequence[Fault]) -> None:
    """Raise one ConfigError with all faults, if there are any."""
    if not faults:
        return
    lines = "\n".join(f"  {each}" for each in faults)
    error = ConfigError(str(faults[0]) if len(faults) == 1 else f"{len(faults)} faults in the configuration:\n{lines}")
    error.faults = tuple((each.key, f"{each.where}: {each.text}") for each in faults)
    raise error


def dotted(path: KeyPath) -> str:
    """The key of a setting as the command line has it: "engine.max_seq_len"."""
    return ".".join(str(part) for part in path)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A suggestion with a leading space: a word that begins with this one, or else a similar one; empty without any.
    Words of three letters are similar to too many: 'gpu' to 'cpu'."""
    words = list(known)
    longer = [each for each in words if len(word) > 2 and each.startswith(word)]
    close = longer or (difflib.get_close_matches(word, words, n=1, cutoff=0.6) if len(word) > 3 else [])
    return f" Did you mean '{close[0]}'?" if close else ""


def one_of(values: Sequence[object]) -> str:
    """'a', 'b' or 'c'."""
    words = [repr(value) for value in values]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def faults_of_validation(
    error: ValidationError,
    schema: type[BaseModel],
    data: Mapping[str, Any],
    origins: Mapping[KeyPath, str],
    prefix: KeyPath,
) -> list[Fault]:
    """Convert pydantic's errors to one fault per wrong setting. `prefix` is shown before each key ("model" for keys of
    a model)."""
    faults = []
    members: dict[KeyPath, list[str]] = {}  # unions without a matching member; pydantic has an error for each member
    for entry in error.errors():
        path, member = _place(entry["loc"], data, is_missing=entry["type"] == "missing")
        if member is not None:
            members.setdefault(path, []).append(member)
            continue
        where = _origin_of_rule(path, origins) if entry["type"] == "value_error" else origin_of(path, origins)
        faults.append(Fault(prefix + path, _text(dict(entry), path, schema, data), where=where))
    for path, names in members.items():
        text = f"found {_short(_value_at(path, data))}; should be {_any_of(names)}."
        faults.append(Fault(prefix + path, text, where=origin_of(path, origins)))
    return faults


def origin_of(path: KeyPath, origins: Mapping[KeyPath, str]) -> str:
    """Place where the setting was written, or else the closest mapping around it."""
    return next(origins[path[:length]] for length in range(len(path), -1, -1) if path[:length] in origins)


def _origin_of_rule(path: KeyPath, origins: Mapping[KeyPath, str]) -> str:
    """Place to report if settings below `path` contradict each other: the layer that was merged last."""
    where = origin_of(path, origins)
    below = [origin for key, origin in origins.items() if key[: len(path)] == path and len(key) > len(path)]
    over = [origin for origin in below if origin.partition(":")[0] != where.partition(":")[0]]
    return over[-1] if over else where


def without(data: Mapping[str, Any], paths: Iterable[KeyPath]) -> dict[str, Any]:
    """Copy data without the settings at `paths`, which then get their defaults."""
    drop = set(paths)

    def copy(value: Any, path: KeyPath) -> Any:
        if isinstance(value, Mapping):
            return {k: copy(v, (*path, k)) for k, v in value.items() if (*path, k) not in drop}
        if isinstance(value, list):
            return [copy(v, (*path, i)) for i, v in enumerate(value) if (*path, i) not in drop]
        return value

    result = copy(data, ())
    assert isinstance(result, dict), "the root is a mapping"
    return result


def _text(entry: dict[str, Any], path: KeyPath, schema: type[BaseModel], data: Mapping[str, Any]) -> str:
    found, context = entry["input"], entry.get("ctx", {})
    right = entry["msg"].removeprefix("Input ")
    right = right.replace("an object", "keys and values").replace("a valid array", "a list")
    match entry["type"]:
        case "extra_forbidden":
            return "unknown key." + _suggest_key(path, schema, data)
        case "missing":
            field = _fields_at(schema, path[:-1], data).get(str(path[-1]))
            meaning = f" ({field.description.rstrip('.')})" if field is not None and field.description else ""
            return f"is missing{meaning}."
        case "literal_error":
            hint = did_you_mean(found, _quoted(context["expected"])) if isinstance(found, str) else ""
            return f"found {found!r}; should be {context['expected']}.{hint}"
        case "union_tag_invalid":
            hint = did_you_mean(str(context["tag"]), _quoted(context["expected_tags"]))
            key = context["discriminator"].strip("'")
            return f"found {key} {context['tag']!r}; should be one of {context['expected_tags']}.{hint}"
        case "union_tag_not_found":
            return f"needs the key {context['discriminator']}, which selects the other settings."
        case "value_error":
            return f"{context['error']}."
        case "json_invalid":
            return "a path or a text in it has a byte that is not UTF-8. Rename the file or the folder."
        case "string_pattern_mismatch":
            hint = " It is the name of the file, so rename the file." if path == ("name",) else ""
            return f"found {found!r}; should be of the form {context['pattern']}.{hint}"
        case "string_type" if isinstance(found, bool):
            word = "true" if found else "false"
            return f"found {word}, which YAML also reads yes, no, on and off as; should be a text. Put it in quotes."
        case "string_type" if isinstance(found, int | float):
            return f"found the number {found!r}; should be a text. Put it in quotes."
        case "int_type" | "float_type" if isinstance(found, str) and (digits := _digits(found)):
            return f"found the text {found!r}; {right}. Written as a number it is {digits}, without quotes or exponent."
        case _:
            return f"found {_short(found)}; {right}."


def _digits(text: str) -> str:
    """The number of a text, without an exponent; empty if it is none, or too long to write."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        return ""
    return f"{number:f}" if number.is_finite() and abs(number.adjusted()) < 20 else ""


def _suggest_key(path: KeyPath, schema: type[BaseModel], data: Mapping[str, Any]) -> str:
    word = str(path[-1])
    siblings = _fields_at(schema, path[:-1], data)
    if hint := did_you_mean(word, siblings):
        return hint
    paths = _setting_paths(schema, ())
    for close in difflib.get_close_matches(word, {path[-1] for path in paths}, n=1, cutoff=0.8):
        return f" Did you mean '{next(dotted(found) for found in paths if found[-1] == close)}'?"
    return f" Known here: {', '.join(siblings)}." if siblings else ""


def _setting_paths(schema: type[BaseModel], path: KeyPath) -> list[tuple[str, ...]]:
    """Paths of all settings, except those below lists, mappings with free keys, and unions."""
    found: list[tuple[str, ...]] = []
    for name, field in schema.model_fields.items():
        inner = field.annotation
        here = (*(str(part) for part in path), name)
        found.append(here)
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            found += _setting_paths(inner, here)
    return found


def _fields_at(schema: type[BaseModel], path: KeyPath, data: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of the type at `path`; empty if the type is not a single class."""
    current: Any = schema
    value: Any = data
    for part in path:
        value = _value_at((part,), value)
        if isinstance(current, type) and issubclass(current, BaseModel):
            field = current.model_fields.get(str(part))
            current = field.annotation if field is not None else None
        else:  # an entry of a tuple or of a mapping
            arguments = [a for a in typing.get_args(current) if a is not Ellipsis]
            current = arguments[-1] if arguments else None
        current = _chosen(current, value)
    return dict(current.model_fields) if isinstance(current, type) and issubclass(current, BaseModel) else {}


def _chosen(annotation: Any, value: Any) -> Any:
    """Member of a tagged union that `value` selects. Returns other annotations unchanged."""
    if typing.get_origin(annotation) is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    if typing.get_origin(annotation) not in (typing.Union, types.UnionType):
        return annotation
    for member in typing.get_args(annotation):
        for tag in TAGS:
            field = getattr(member, "model_fields", {}).get(tag)
            if field is not None and isinstance(value, Mapping) and value.get(tag) == field.default:
                return member
    return annotation


def _place(location: tuple[str | int, ...], data: Mapping[str, Any], *, is_missing: bool) -> tuple[KeyPath, str | None]:
    """Path of a setting, and the union member of the error, which pydantic appends to the path."""
    path: list[str | int] = []
    value: Any = data
    for part in location:
        if isinstance(value, Mapping) and part not in value and part in [value.get(tag) for tag in TAGS]:
            continue
        is_here = part in value if isinstance(value, Mapping) else isinstance(part, int)
        if not is_here and not is_missing:
            return tuple(path), str(part)
        path.append(part)
        value = _value_at((part,), value)
    return tuple(path), None


def _value_at(path: KeyPath, data: Any) -> Any:
    """The value at a path; None if there is none."""
    try:
        for part in path:
            data = data[part]
    except (KeyError, IndexError, TypeError):
        return None
    return data


def _any_of(members: Sequence[str]) -> str:
    """Members of a union in words, such as "true or false, a number or a text"."""
    words = [_TYPES.get(name, name) for name in members if name != "int" or "float" not in members]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _quoted(text: str) -> list[str]:
    return [piece for piece in text.split("'") if piece.strip() not in ("", ",", "or")]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
